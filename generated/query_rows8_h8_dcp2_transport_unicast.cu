// query_rows8_h8_dcp2_transport_unicast: MLA decode query, scheme `rows`.
// RMSNorm of q_a, Q_B, W_UK absorption and the paged KV insert in one kernel.
//
// A cluster of 8 CTAs owns one head for 8 tokens; CTA `part` owns 24 Q_B rows over all of K, then
// 64 latent columns. One exchange: each CTA's nope columns go to all eight.
#include "query/absorb.cuh"
#include "query/kv/fp8_multiply.cuh"
#include "query/store.cuh"
#include "release.cuh"
#include "ptx/mailbox.cuh"

constexpr int kNumTokens = 8;  // token rows of a CTA's tile
constexpr int kClusterSize = 8;  // CTAs that share one head
constexpr int kNumThreads = 288;  
constexpr int kCtasPerSm = 2;
constexpr bool kDsa = false;  // the stock C++ form of the RMSNorm
constexpr bool kStoreQc = false;
constexpr bool kLate = false;
constexpr Release kRelease = Release::wait;

constexpr int kLoraColumns = 1536;  // q_a, the depth of Q_B
constexpr int kHeadRows = 192;      // Q_B rows of a head: 128 nope, 64 rope
constexpr int kQueryColumns = 576;  // 512 latent, 64 rope
constexpr int kRowsPerCta = kHeadRows / kClusterSize;
constexpr int kComputeWarps = kNumThreads / 32 - 1;  // beside those of the KV insert alone
constexpr int kComputeThreads = 32 * kComputeWarps;
constexpr int kComputeBarrier = 1;  // block barrier of the compute warps

static_assert(kClusterSize == 8, "64 latent columns a CTA: a cluster is 8 CTAs");
static_assert(kComputeWarps == 8, "one warp for every 8 of the CTA's latent columns");

struct Params {
    const bf16* qkv;  // [num_rows, >=2112]
    const bf16* w_qa;  // [1536]
    const bf16* w_kva;  // [512]
    const bf16* w_qb;  // [heads * 192, 1536]
    const bf16* w_uk;  // [heads, 128, 512]
    uint8_t* cache;  // [any, page_size, 576]
    const int64_t* slots;  // [num_rows]
    const float* q_scale_inv;  // []
    const float* k_scale_inv;  // []
    e4m3* out;  // [num_rows, heads, 576]
    const int64_t* peers;  // [2]
    e4m3* mailbox;  // [num_rows, 16, 576]
    int64_t qkv_stride;  // elements, qkv
    int64_t w_uk_stride;  // elements, w_uk
    int64_t page_stride;  // elements, cache
    int64_t out_stride;  // elements, out
    int32_t page_size;  // extent, cache
    float eps;  // of the RMSNorms
    int32_t num_rows;  // token rows
    int32_t rank;  // of this GPU among the ranks
};
static_assert(sizeof(Params) == 144, "the host packs 144 bytes");

namespace {

using Query = e4m3;  // element of the output

__device__ float load_query_scale(const Params& params) {
    return *params.q_scale_inv;
}

__device__ KvScale load_kv_scale(const Params& params) {
    return {*params.k_scale_inv};
}

// Where the q_c row of `token` goes.
[[maybe_unused]] __device__ bf16* q_c_row(const Params& params, int token) {
    return nullptr;
}

__device__ float query_rrms(float sum, float eps) {
    if constexpr (kDsa) return rrms_dsa(sum, eps);
    return rrms_dense(sum, eps);
}

// The 576 columns of this head's query of `token`.
__device__ Query* query_row(const Params& params, int token, int head) {
    return params.out + token * params.out_stride + head * kQueryColumns;
}

// Wait for the grids before this one; the next one may start now, if it has not yet. A late kernel runs
// beside the grid before it and waits at its end, so that what follows still waits for both.
__device__ void start_step() {
    if constexpr (!kLate) griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();
}

__device__ void end_step() {
    if constexpr (kLate) griddepcontrol_wait();
}

// A token's row on its way into the cache.
struct KvInsert {
    int64_t slot;  // negative: nowhere
    KvRow row;
};

__device__ KvInsert load_kv_insert(const Params& params, int token, int lane) {
    return {ld_global_cg_s64(params.slots + token),
            load_kv_row(params.qkv + token * params.qkv_stride + kLoraColumns, lane)};
}

__device__ void store_kv_insert(const Params& params, KvInsert& insert, const KvWeights& weights, KvScale scale,
                                int lane) {
    if (insert.slot < 0) return;
    normalise(insert.row, weights, params.eps);
    uint8_t* page = params.cache + insert.slot / params.page_size * params.page_stride;
    store_kv_row(page + insert.slot % params.page_size * kKvRowBytes, insert.row, scale, lane);
}

// The KV insert's warp: the rows of this tile are dealt over all of its CTAs.
[[maybe_unused]] __device__ void insert_kv(const Params& params, int first, int count, int cta, int lane) {
    const KvWeights weights = load_kv_weights(params.w_kva, lane);
    const KvScale scale = load_kv_scale(params);
    start_step();
    for (int token = first + cta; token < first + count; token += gridDim.y * kClusterSize) {
        KvInsert insert = load_kv_insert(params, token, lane);
        store_kv_insert(params, insert, weights, scale, lane);
    }
    end_step();
}

}  // namespace

constexpr int kNumHeads = 8;          // of this rank
constexpr int kMailboxHeads = 16;  // rows of a token in every rank's mailbox
constexpr int kMailboxRow = kQueryColumns * sizeof(Query);

namespace {

// Where this head's query of `token` lies in a mailbox [cap, rows, 576], in bytes.
__device__ int64_t mailbox_offset(const Params& params, int token, int head) {
    const int row = params.rank * kNumHeads + head;
    return (static_cast<int64_t>(token) * kMailboxHeads + row) * kMailboxRow;
}

// Store a piece of the query into every rank's mailbox.
template <class Piece>
__device__ void publish(const Params& params, int64_t offset, const Piece& piece) {
#pragma unroll 1
    for (int rank = 0; rank < 2; ++rank)
        st_relaxed_sys(reinterpret_cast<uint8_t*>(params.peers[rank]) + offset, piece);
}

// A thread's pair of latent columns on its way: [tokens, 64] at `stage` in shared memory.
[[maybe_unused]] __device__ void stage_pair(uint8_t* stage, int token, int column, float low, float high, float scale) {
    *reinterpret_cast<Packed<Query>::Pair*>(stage + (token * kUkColumns + column) * sizeof(Query)) =
        to_query_pair<Query>(low, high, scale);
}

// All of the CTA's latent columns of the tile, as staged.
[[maybe_unused]] __device__ void publish_latent(const Params& params, SharedAddr stage, int first, int count, int head, int part) {
    constexpr int kPieces = kUkColumns * sizeof(Query) / 16;  // of a token
    for (int i = threadIdx.x; i < count * kPieces; i += kComputeThreads) {
        const int64_t column = part * kUkColumns * sizeof(Query) + i % kPieces * 16;
        publish(params, mailbox_offset(params, first + i / kPieces, head) + column, ld_shared_16(stage + 16 * i));
    }
}

// Wait until this CTA's share of the tile's tokens has come from every rank.
__device__ void poll_mailbox(const Params& params, int first, int count, int cta) {
    constexpr int kWatchdog = 0;                          // milliseconds of a poll; 0: none
    constexpr int kPieces = 2 * kNumHeads * kMailboxRow / 16;  // of a token
    const uint8_t* box = reinterpret_cast<const uint8_t*>(params.mailbox);
    for (int i = cta * kComputeThreads + threadIdx.x; i < count * kPieces;
         i += kNumHeads * kClusterSize * kComputeThreads) {
        const int token = first + i / kPieces, byte = i % kPieces * 16, head = byte / kMailboxRow;
        const int64_t row = static_cast<int64_t>(token) * kMailboxHeads * kMailboxRow;
        const Wanted wanted{0, kQueryBox, head / kNumHeads, token, head, byte % kMailboxRow / 4};
        wait_for_words<kSentinel, kWatchdog>(box + row + byte, wanted);
    }
}

}  // namespace

namespace {

// Eight rope columns of a token's query, Q_B's rows from `head_row` of the head on, in BF16: to the query, and with
// DCP to every rank's mailbox.
[[maybe_unused]] __device__ void store_rope8(const Params& params, int token, int head, int head_row, const Vec16& octet,
                                             float scale) {
    store_query8(query_row(params, token, head) + kKvColumns + head_row - kNopeColumns, octet, scale);
    const int64_t column = (kKvColumns + head_row - kNopeColumns) * sizeof(Query);
    publish(params, mailbox_offset(params, token, head) + column, to_query8<Query>(octet, scale));
}

}  // namespace

constexpr bool kQbCpAsync = false;  // not bulk copies
constexpr int kSmemWeights = 0;
constexpr int kSmemUk = 75264;
constexpr int kSmemPartials = 91648;
constexpr int kSmemNope = 97792;
constexpr int kSmemSums = 99968;
constexpr int kSmemBarriers = 100224;

constexpr int kWeightPitch = 2 * kLoraColumns + 64;  // bytes; 196 * 16: rows g, g+1 use other banks
constexpr int kRowTiles = kRowsPerCta / 8;
constexpr int kWarpColumns = kLoraColumns / kComputeWarps;
constexpr int kBlocks = kWarpColumns / 32;           // a lane's 16-byte pieces of a row

static_assert(kNumTokens == 8, "tokens are half the M side of one MMA");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr uk() const { return base + kSmemUk; }
    __device__ SharedAddr partials() const { return base + kSmemPartials; }
    __device__ SharedAddr nope() const { return base + kSmemNope; }
    __device__ SharedAddr weights_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr nope_barrier() const { return base + kSmemBarriers + 8; }
};

// Start the copies of this CTA's Q_B rows, in bulk or by 16 bytes.
__device__ void start_weights(const Params& params, const Smem& smem, int head, int part, int warp, int lane) {
    const bf16* w_qb = params.w_qb + (static_cast<int64_t>(head) * kHeadRows + kRowsPerCta * part) * kLoraColumns;
    if constexpr (kQbCpAsync) {
        cp_async_rows<kRowsPerCta, 2 * kLoraColumns, kWeightPitch, kComputeThreads>(
            smem.weights(), w_qb, 2 * kLoraColumns, threadIdx.x);
    } else if (lane == 0) {
        for (int row = warp; row < kRowsPerCta; row += kComputeWarps)
            cp_async_bulk(smem.weights() + row * kWeightPitch, w_qb + row * kLoraColumns, 2 * kLoraColumns,
                          smem.weights_barrier());
    }
}

__device__ void start_barriers(const Smem& smem, int count) {
    mbarrier_init(smem.weights_barrier(), 1);
    mbarrier_init(smem.nope_barrier(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.weights_barrier(), kQbCpAsync ? 0 : kRowsPerCta * 2 * kLoraColumns);
    mbarrier_arrive_expect_tx(smem.nope_barrier(), count * kNopeColumns * 2);
}

// The sum over the block of the squares of token g; each warp brings the diagonal of its products.
__device__ float sum_over_warps(float* sums, const SquareSums& squares, int warp, int lane) {
    const int token = lane / 4;
    if (lane % 4 == token / 2) sums[token * kComputeWarps + warp] = diagonal(squares, token);
    bar_sync<kComputeBarrier, kComputeThreads>();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) total += sums[token * kComputeWarps + w];
    return total;
}

// Split K over the warps: this warp's columns of all 24 rows times all tokens. Lane (g, t) holds
// columns 8t.. of every 32 of token g and of the weight rows g, g+8, g+16: the same permutation of
// K on both sides. The upper half of the MMA's 16 rows is zero. `q_c`: where token g's row goes, or null.
__device__ void multiply(Acc (&acc)[kRowTiles], const Vec16 (&x)[kBlocks], const Vec16 (&w_qa)[kBlocks], float rr,
                         bf16* q_c, const Smem& smem, int warp, int lane) {
    const int column = kWarpColumns * warp + 8 * (lane % 4);
    const SharedAddr row = smem.weights() + (lane / 4) * kWeightPitch + 2 * column;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        const Vec16 y = normalise(x[j], rr, w_qa[j]);
        if (kStoreQc && q_c) store_global16(q_c + column + 32 * j, y);
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
            const Vec16 w = ld_shared_16(row + 64 * j + 8 * n * kWeightPitch);
            mma_m16n8k16(acc[n], y.word[0], 0, y.word[1], 0, w.word[0], w.word[1]);
            mma_m16n8k16(acc[n], y.word[2], 0, y.word[3], 0, w.word[2], w.word[3]);
        }
    }
}

// partials[warp][token][row] = this warp's sums.
__device__ void store_partials(const Smem& smem, const Acc (&acc)[kRowTiles], int warp, int lane) {
    const int mine = (warp * kNumTokens + lane / 4) * kRowsPerCta + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
        st_shared_8(smem.partials() + 4 * (mine + 8 * n), acc[n].c[0], acc[n].c[1]);
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_rows8_h8_dcp2_transport_unicast(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const Smem smem = {shared_addr(storage)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int count = min(kNumTokens, params.num_rows - first);

    if (count <= 0) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: weights only.
    if (threadIdx.x == kComputeThreads) start_barriers(smem, count);
    if (warp < kComputeWarps)
        stage_uk<kComputeThreads>(smem.uk(), params.w_uk + head * params.w_uk_stride, part, threadIdx.x);
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (warp == kComputeWarps) {
        barrier_cluster_wait();
        insert_kv(params, first, count, head * kClusterSize + part, lane);
        return;
    }
    start_weights(params, smem, head, part, warp, lane);
    cp_async_commit_group();
    const int column = kWarpColumns * warp + 8 * (lane % 4);
    Vec16 w_qa[kBlocks];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) w_qa[j] = ld_global_nc_16(params.w_qa + column + 32 * j);
    const float q_scale_inv = load_query_scale(params);
    barrier_cluster_wait();
    start_step();

    // Load x [tokens, 192 columns of this warp] as fragments; reciprocal RMS of each token.
    const int token = lane / 4;
    Vec16 x[kBlocks] = {};
    if (token < count) {
        const bf16* row = params.qkv + (first + token) * params.qkv_stride + column;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) x[j] = ld_global_cg_16(row + 32 * j);
    }
    SquareSums squares = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) add_token_squares(squares, x[j]);
    cp_async_wait_group<0>();  // the barrier inside the sum shows every thread's share to all
    float* sums = reinterpret_cast<float*>(storage + kSmemSums);
    const float rr = query_rrms(sum_over_warps(sums, squares, warp, lane), params.eps);

    // Q_B: split K over the warps, then add the eight partial products.
    const float* partials = reinterpret_cast<const float*>(storage + kSmemPartials);
    mbarrier_wait(smem.weights_barrier(), 0);
    Acc acc[kRowTiles] = {};
    bf16* q_c = head == 0 && warp == part && token < count ? q_c_row(params, first + token) : nullptr;
    multiply(acc, x, w_qa, rr, q_c, smem, warp, lane);
    store_partials(smem, acc, warp, lane);
    bar_sync<kComputeBarrier, kComputeThreads>();

    // A thread a value: nope octets go to CTA lane % 8, rope octets to the query.
    if (threadIdx.x < kNumTokens * kRowsPerCta) {
        const int token = threadIdx.x / kRowsPerCta, row = threadIdx.x % kRowsPerCta;
        const float* mine = partials + token * kRowsPerCta + row;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kComputeWarps; ++w) sum += mine[w * kNumTokens * kRowsPerCta];
        const Vec16 octet = gather_octet(sum, lane);
        const int head_row = kRowsPerCta * part + (row & ~7);
        if (token >= count) {
        } else if (head_row < kNopeColumns) {
            const SharedAddr target = smem.nope() + token * kNopePitch + 2 * head_row;
            st_async(mapa(target, lane % 8), octet, mapa(smem.nope_barrier(), lane % 8));
        } else if (lane % 8 == 0) {
            store_rope8(params, first + token, head, head_row, octet, q_scale_inv);
        }
    }

    // Absorb: warp w owns latent columns 8w.. of this CTA's 64.
    const UkFragments w_uk = load_uk_fragments(smem.uk(), warp, lane);
    mbarrier_wait(smem.nope_barrier(), 0);
    const Acc latent = absorb8(smem.nope(), w_uk, lane);
    bar_sync<kComputeBarrier, kComputeThreads>();  // partial products are read: the query takes their place
    if (token < count) {
        Query* query = query_row(params, first + token, head);
        store_query_pair(query + 64 * part + 8 * warp + 2 * (lane % 4), latent.c[0], latent.c[1], q_scale_inv);
        stage_pair(storage + kSmemPartials, token, 8 * warp + 2 * (lane % 4), latent.c[0], latent.c[1], q_scale_inv);
    }
    bar_sync<kComputeBarrier, kComputeThreads>();
    publish_latent(params, smem.partials(), first, count, head, part);
    poll_mailbox(params, first, count, head * kClusterSize + part);
    end_step();
}
