// query_ksplit32x8_dsa: MLA decode query, scheme `ksplit`, K cut in eight.
// RMSNorm of q_a, Q_B, W_UK absorption and the paged KV insert in one kernel.
//
// A cluster of 8 CTAs owns one head for 32 tokens. CTA `part` multiplies all 192 Q_B rows over an
// eighth of K, then keeps rows 24 * part.. and 64 latent columns. Three exchanges: sums of squares
// to all, partial products to the owner of the rows, nope columns to all.
#include "query/absorb.cuh"
#include "query/kv/fp8_ds_mla.cuh"
#include "query/store.cuh"
#include "release.cuh"

constexpr int kNumTokens = 32;  // token rows of a CTA's tile
constexpr int kClusterSize = 8;  // CTAs that share one head
constexpr int kNumThreads = 288;  
constexpr int kCtasPerSm = 2;
constexpr bool kDsa = true;  // the stock C++ form of the RMSNorm
constexpr bool kStoreQc = true;
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
    uint8_t* cache;  // [any, page_size, 656]
    const int64_t* slots;  // [num_rows]
    bf16* out;  // [num_rows, heads, 576]
    bf16* q_c;  // [num_rows, 1536]
    int64_t qkv_stride;  // elements, qkv
    int64_t w_uk_stride;  // elements, w_uk
    int64_t page_stride;  // elements, cache
    int64_t out_stride;  // elements, out
    int64_t q_c_stride;  // elements, q_c
    int32_t page_size;  // extent, cache
    float eps;  // of the RMSNorms
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 128, "the host packs 128 bytes");

namespace {

using Query = bf16;  // element of the output

__device__ float load_query_scale(const Params& params) {
    return 1.0f;
}

__device__ KvScale load_kv_scale(const Params& params) {
    return {};
}

// Where the q_c row of `token` goes.
[[maybe_unused]] __device__ bf16* q_c_row(const Params& params, int token) {
    return params.q_c + token * params.q_c_stride;
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

namespace {

// Eight rope columns of a token's query, Q_B's rows from `head_row` of the head on, in BF16: to the query, and with
// DCP to every rank's mailbox.
[[maybe_unused]] __device__ void store_rope8(const Params& params, int token, int head, int head_row, const Vec16& octet,
                                             float scale) {
    store_query8(query_row(params, token, head) + kKvColumns + head_row - kNopeColumns, octet, scale);
}

}  // namespace

constexpr int kSplits = 8;  // CTAs that share K
constexpr int kSmemWeights = 0;
constexpr int kSmemX = 76800;  // normalised x; before it w_uk, after it nope
constexpr int kSmemPartials = 89600;
constexpr int kSmemSums = 114176;
constexpr int kSmemBarriers = 115200;

constexpr int kColumns = kLoraColumns / kSplits;     // of K, this CTA's
constexpr int kPitch = 2 * kColumns + 16;            // bytes; an odd multiple of 16 for ldmatrix
constexpr int kTiles = kNumTokens / 16;
constexpr int kTokenLanes = 8;                       // lanes that share a token's columns
constexpr int kPieces = kColumns / 8 / kTokenLanes;  // 16-byte pieces a lane
constexpr int kPartialBytes = kNumTokens * kRowsPerCta * 4;  // one slice's

static_assert(kSplits == kClusterSize && kSplits == kTokenLanes, "a lane for each CTA that gets a token's sum");
static_assert(kRowsPerCta * kComputeWarps == kHeadRows, "a warp for each owner of rows");
static_assert(kTiles * 16 == kNumTokens && kNumTokens * kTokenLanes == kComputeThreads, "one token a thread");
static_assert(kPitch / 16 % 2 == 1, "rows of ldmatrix fall into different banks");
static_assert(kNumTokens * kNopePitch <= kNumTokens * kPitch, "nope fits where x was");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr x() const { return base + kSmemX; }
    __device__ SharedAddr uk() const { return base + kSmemX; }
    __device__ SharedAddr nope() const { return base + kSmemX; }
    __device__ SharedAddr partials() const { return base + kSmemPartials; }
    __device__ SharedAddr sums() const { return base + kSmemSums; }
    __device__ SharedAddr sums_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr partials_barrier() const { return base + kSmemBarriers + 8; }
    __device__ SharedAddr nope_barrier() const { return base + kSmemBarriers + 16; }
};

__device__ void start_barriers(const Smem& smem) {
    mbarrier_init(smem.sums_barrier(), 1);
    mbarrier_init(smem.partials_barrier(), 1 + 32);
    mbarrier_init(smem.nope_barrier(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.sums_barrier(), kSplits * kNumTokens * 4);
    mbarrier_arrive_expect_tx(smem.partials_barrier(), (kSplits - 1) * kPartialBytes);
    mbarrier_arrive_expect_tx(smem.nope_barrier(), kNumTokens * kNopeColumns * 2);
}

// Start the copies of this CTA's weights: w_uk, which is read first, in a group of its own.
__device__ void start_weights(const Params& params, const Smem& smem, int head, int part) {
    stage_uk<kComputeThreads>(smem.uk(), params.w_uk + head * params.w_uk_stride, part, threadIdx.x);
    cp_async_commit_group();
    const bf16* w_qb = params.w_qb + static_cast<int64_t>(head) * kHeadRows * kLoraColumns + part * kColumns;
    cp_async_rows<kHeadRows, 2 * kColumns, kPitch, kComputeThreads>(
        smem.weights(), w_qb, 2 * kLoraColumns, threadIdx.x);
    cp_async_commit_group();
}

// This warp's 24 weight rows times all tokens over the CTA's columns.
__device__ void multiply(Acc (&acc)[kTiles][3], const Smem& smem, int warp, int lane) {
    const SharedAddr b_row = smem.weights() + (kRowsPerCta * warp + lane % 8) * kPitch + 16 * (lane / 8);
    const SharedAddr a_row = smem.x() + lane % 16 * kPitch + 16 * (lane / 16);
#pragma unroll
    for (int k = 0; k < kColumns / 32; ++k) {
        Vec16 b[3];
#pragma unroll
        for (int n = 0; n < 3; ++n) b[n] = ldmatrix_x4(b_row + 8 * n * kPitch + 64 * k);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                const Vec16 a = ldmatrix_x4(a_row + 16 * m * kPitch + 64 * k + 32 * half);
#pragma unroll
                for (int n = 0; n < 3; ++n)
                    mma_m16n8k16(acc[m][n], a.word[0], a.word[1], a.word[2], a.word[3],
                                 b[n].word[2 * half], b[n].word[2 * half + 1]);
            }
        }
    }
}

// This CTA's slice of the partial products [tokens, 24] goes to the owner of the rows, CTA `warp`.
__device__ void send_partials(const Acc (&acc)[kTiles][3], const Smem& smem, int part, int warp, int lane) {
    const SharedAddr mine =
        smem.partials() + part * kPartialBytes + 4 * (lane / 4 * kRowsPerCta + 2 * (lane % 4));
    const SharedAddr target = mapa(mine, warp);
    const SharedAddr barrier = mapa(smem.partials_barrier(), warp);
#pragma unroll
    for (int i = 0; i < kTiles * 6; ++i) {
        const int offset = 4 * (8 * (i / 3) * kRowsPerCta + 8 * (i % 3));
        const float* c = acc[i / 6][i % 3].c + i / 3 % 2 * 2;
        if (warp == part) st_shared_8(mine + offset, c[0], c[1]);
        else st_async(target + offset, c[0], c[1], barrier);
    }
    if (warp == part) mbarrier_arrive(smem.partials_barrier());
}

// Add the slices of four rows of a token and round to BF16; a pair of lanes then holds eight.
__device__ Vec16 add_partials(const Smem& smem, int token, int row, int lane) {
    float sum[4] = {};
#pragma unroll
    for (int slice = 0; slice < kSplits; ++slice) {
        const Vec16 v = ld_shared_16(smem.partials() + slice * kPartialBytes + 4 * (token * kRowsPerCta + row));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(v.word[i]);
    }
    return gather_octet(sum, lane);
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_ksplit32x8_dsa(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const Smem smem = {shared_addr(storage)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int count = min(kNumTokens, params.num_rows - first);
    if (count <= 0) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: weights only.
    if (threadIdx.x == kComputeThreads) start_barriers(smem);
    if (warp < kComputeWarps) start_weights(params, smem, head, part);
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (warp == kComputeWarps) {
        barrier_cluster_wait();
        insert_kv(params, first, count, head * kClusterSize + part, lane);
        return;
    }
    const int token = threadIdx.x / kTokenLanes, sub = threadIdx.x % kTokenLanes;
    const int column = kColumns * part + 8 * sub;
    Vec16 w_qa[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) w_qa[i] = ld_global_nc_16(params.w_qa + column + 8 * kTokenLanes * i);
    const float q_scale_inv = load_query_scale(params);
    barrier_cluster_wait();
    cp_async_wait_group<1>();
    bar_sync<kComputeBarrier, kComputeThreads>();
    const UkFragments w_uk = load_uk_fragments(smem.uk(), warp, lane);
    bar_sync<kComputeBarrier, kComputeThreads>();  // w_uk is read: x may take its place
    start_step();

    // Load x [tokens, columns of this slice]; each token's sum of squares goes to all CTAs.
    Vec16 x[kPieces] = {};
    if (token < count) {
        const bf16* row = params.qkv + (first + token) * params.qkv_stride + column;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) x[i] = ld_global_cg_16(row + 8 * kTokenLanes * i);
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) squares = add_squares(squares, x[i]);
    squares = sum_lanes<kTokenLanes>(squares);
    st_async(mapa(smem.sums() + 4 * (part * kNumTokens + token), sub), squares, mapa(smem.sums_barrier(), sub));

    // Normalise into shared memory.
    mbarrier_wait(smem.sums_barrier(), 0);
    const float* sums = reinterpret_cast<const float*>(storage + kSmemSums);
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kSplits; ++s) sum += sums[s * kNumTokens + token];
    const float rr = query_rrms(sum, params.eps);
    const bool stores_qc = kStoreQc && head == 0 && token < count;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const Vec16 y = normalise(x[i], rr, w_qa[i]);
        st_shared_16(smem.x() + token * kPitch + 16 * (sub + kTokenLanes * i), y);
        if (stores_qc) store_global16(q_c_row(params, first + token) + column + 8 * kTokenLanes * i, y);
    }
    cp_async_wait_group<0>();
    bar_sync<kComputeBarrier, kComputeThreads>();

    // Q_B over this slice; the partial products go to the owners of the rows.
    Acc acc[kTiles][3] = {};
    multiply(acc, smem, warp, lane);
    bar_sync<kComputeBarrier, kComputeThreads>();  // x is read: a peer's nope may take its place
    send_partials(acc, smem, part, warp, lane);

    // Add the slices of this CTA's 24 rows: nope columns go to all CTAs, rope columns to the query.
    mbarrier_wait(smem.partials_barrier(), 0);
#pragma unroll
    for (int i = threadIdx.x; i < kNumTokens * 6; i += kComputeThreads) {
        const int token = i / 6, row = i % 6 * 4;
        const Vec16 octet = add_partials(smem, token, row, lane);
        const int head_row = kRowsPerCta * part + (row & ~7);
        if (head_row < kNopeColumns) {
            const SharedAddr target = smem.nope() + token * kNopePitch + 2 * head_row;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int peer = lane % 2 * 4 + j;
                st_async(mapa(target, peer), octet, mapa(smem.nope_barrier(), peer));
            }
        } else if (lane % 2 == 0 && token < count) {
            store_rope8(params, first + token, head, head_row, octet, q_scale_inv);
        }
    }

    // Absorb: warp w owns latent columns 8w.. of this CTA's 64.
    mbarrier_wait(smem.nope_barrier(), 0);
#pragma unroll
    for (int tile = 0; tile < kNumTokens / 16; ++tile) {
        const Acc latent = absorb16(smem.nope() + 16 * tile * kNopePitch, w_uk, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = 16 * tile + 8 * half + lane / 4;
            if (token >= count) continue;
            Query* query = query_row(params, first + token, head);
            store_query_pair(query + 64 * part + 8 * warp + 2 * (lane % 4), latent.c[2 * half],
                             latent.c[2 * half + 1], q_scale_inv);
        }
    }
    end_step();
}
