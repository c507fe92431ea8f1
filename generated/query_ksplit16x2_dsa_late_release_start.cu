// query_ksplit16x2_dsa_late_release_start: MLA decode query, scheme `ksplit`, K cut in two.
// RMSNorm of q_a, Q_B, W_UK absorption and the paged KV insert in one kernel.
//
// A cluster of 8 CTAs owns one head for 16 tokens. Two CTAs share 48 Q_B rows, each over half of K;
// CTA `part` keeps rows 24 * part.. and 64 latent columns. Three exchanges: sums of squares and
// partial products with the peer, nope columns to all eight.
#include "query/absorb.cuh"
#include "query/kv/fp8_ds_mla.cuh"
#include "query/store.cuh"
#include "release.cuh"

constexpr int kNumTokens = 16;  // token rows of a CTA's tile
constexpr int kClusterSize = 8;  // CTAs that share one head
constexpr int kNumThreads = 288;  
constexpr int kCtasPerSm = 2;
constexpr bool kDsa = true;  // the stock C++ form of the RMSNorm
constexpr bool kStoreQc = true;
constexpr bool kLate = true;
constexpr Release kRelease = Release::start;

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

constexpr int kSplits = 2;  // CTAs that share the K columns of a row group
constexpr int kSmemWeights = 0;
constexpr int kSmemWqa = 76800;
constexpr int kSmemUk = 78336;
constexpr int kSmemPartials = 94720;
constexpr int kSmemReceived = 107008;
constexpr int kSmemNope = 108544;
constexpr int kSmemSums = 112896;
constexpr int kSmemBarriers = 113472;

constexpr int kColumns = kLoraColumns / kSplits;     // of K, this CTA's
constexpr int kRows = kRowsPerCta * kSplits;         // of Q_B, this CTA's
constexpr int kRowTiles = kRows / 8;
constexpr int kWeightPitch = 2 * kColumns + 64;      // bytes; rows g, g+1 use other banks
constexpr int kWarpColumns = kColumns / kComputeWarps;
constexpr int kBlocks = kWarpColumns / 32;           // a lane's 16-byte pieces of a row
constexpr int kHalfWarps = kComputeWarps / 2;
constexpr int kOwnQuads = kNumTokens * kRowsPerCta / 4;   // threads that add four sums each

static_assert(kSplits == 2, "one peer answers");
static_assert(kNumTokens == 16, "tokens are the M side of one MMA");
static_assert(kWeightPitch % 128 == 64, "rows g, g+1 use other banks");
static_assert(2 * kOwnQuads <= kComputeThreads && kOwnQuads % 32 == 0, "whole warps add");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr w_qa() const { return base + kSmemWqa; }
    __device__ SharedAddr uk() const { return base + kSmemUk; }
    __device__ SharedAddr partials() const { return base + kSmemPartials; }
    __device__ SharedAddr received() const { return base + kSmemReceived; }
    __device__ SharedAddr nope() const { return base + kSmemNope; }
    __device__ SharedAddr peer_sums() const { return base + kSmemSums + 4 * kNumTokens * kComputeWarps; }
    __device__ SharedAddr weights_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr sums_barrier() const { return base + kSmemBarriers + 8; }
    __device__ SharedAddr received_barrier() const { return base + kSmemBarriers + 16; }
    __device__ SharedAddr nope_barrier() const { return base + kSmemBarriers + 24; }
};

using Columns = Vec16[2][kBlocks];  // of tokens g and g + 8
using QcRows = bf16*[2];            // where this half of their q_c goes, or null

__device__ void start_barriers(const Smem& smem, int count) {
    mbarrier_init(smem.weights_barrier(), 1);
    mbarrier_init(smem.sums_barrier(), 1);
    mbarrier_init(smem.received_barrier(), 1);
    mbarrier_init(smem.nope_barrier(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.weights_barrier(), kRows * 2 * kColumns);
    mbarrier_arrive_expect_tx(smem.sums_barrier(), kNumTokens * 4);
    mbarrier_arrive_expect_tx(smem.received_barrier(), kNumTokens * kRowsPerCta * 4);
    mbarrier_arrive_expect_tx(smem.nope_barrier(), count * kNopeColumns * 2);
}

// Start the bulk copies of this CTA's Q_B rows.
__device__ void start_weights(const Params& params, const Smem& smem, int head, int part, int warp, int lane) {
    if (lane != 0) return;
    const int first = head * kHeadRows + part / kSplits * kRows;
    const bf16* w_qb = params.w_qb + static_cast<int64_t>(first) * kLoraColumns + part % kSplits * kColumns;
    for (int row = warp; row < kRows; row += kComputeWarps)
        cp_async_bulk(smem.weights() + row * kWeightPitch, w_qb + row * kLoraColumns, 2 * kColumns,
                      smem.weights_barrier());
}

// x of tokens `first` + g and + 8, this warp's columns; zeros from `end` on.
__device__ void load_columns(Columns& x, const Params& params, int first, int end, int column, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = first + lane / 4 + 8 * half;
        const bf16* row = params.qkv + token * params.qkv_stride + column;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
            if (token < end) x[half][j] = ld_global_cg_16(row + 32 * j);
            else x[half][j] = {};
        }
    }
}

// Reciprocal RMS of tokens g and g + 8: sums over the warps' columns, then the peer's half of K.
__device__ void reciprocal_rms(float (&rr)[2], const Columns& x, const Smem& smem, float* sums, float eps,
                               int peer, int warp, int lane) {
    const int token = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        SquareSums squares = {};
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) add_token_squares(squares, x[half][j]);
        if (lane % 4 == token / 2) sums[(token + 8 * half) * kComputeWarps + warp] = diagonal(squares, token);
    }
    bar_sync<kComputeBarrier, kComputeThreads>();
    float mine[2] = {};
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) {
        mine[0] += sums[token * kComputeWarps + w];
        mine[1] += sums[(token + 8) * kComputeWarps + w];
    }
    if (warp == 0 && lane % 4 < 2) {
        const SharedAddr target = smem.peer_sums() + 4 * (token + 8 * (lane % 4));
        st_async(mapa(target, peer), lane % 4 ? mine[1] : mine[0], mapa(smem.sums_barrier(), peer));
    }
    mbarrier_wait(smem.sums_barrier(), 0);
    const float* theirs = sums + kNumTokens * kComputeWarps;
    rr[0] = query_rrms(mine[0] + theirs[token], eps);
    rr[1] = query_rrms(mine[1] + theirs[token + 8], eps);
}

// Split K over the warps: this warp's columns of all rows times 16 tokens. Lane (g, t) holds columns
// 8t.. of every 32 of its tokens and of the weight rows g, g+8 ..: one permutation of K on both sides.
__device__ void multiply(Acc (&acc)[kRowTiles], const Columns& x, const float (&rr)[2], const QcRows& q_c,
                         const Smem& smem, int warp, int lane) {
    const int column = kWarpColumns * warp + 8 * (lane % 4);
    const SharedAddr row = smem.weights() + (lane / 4) * kWeightPitch + 2 * column;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        const Vec16 w_qa = ld_shared_16(smem.w_qa() + 2 * column + 64 * j);
        const Vec16 low = normalise(x[0][j], rr[0], w_qa), high = normalise(x[1][j], rr[1], w_qa);
        if (kStoreQc && q_c[0]) store_global16(q_c[0] + column + 32 * j, low);
        if (kStoreQc && q_c[1]) store_global16(q_c[1] + column + 32 * j, high);
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
            const Vec16 w = ld_shared_16(row + 64 * j + 8 * n * kWeightPitch);
            mma_m16n8k16(acc[n], low.word[0], high.word[0], low.word[1], high.word[1], w.word[0], w.word[1]);
            mma_m16n8k16(acc[n], low.word[2], high.word[2], low.word[3], high.word[3], w.word[2], w.word[3]);
        }
    }
}

// Where tile `n` of token `token` lies among a warp's partial products [16, 48]: tiles of tokens
// whose bit 1 is set are swapped in pairs, for the banks.
__device__ SharedAddr partial(const Smem& smem, int warp, int token, int n) {
    return smem.partials() + 4 * ((warp * kNumTokens + token) * kRows + 8 * (n ^ (token >> 1 & 1)));
}

// Halve the warps' partial products: the upper warps' go through shared memory to the lower ones.
__device__ void store_partials(Acc (&acc)[kRowTiles], const Smem& smem, int warp, int lane) {
    const int token = lane / 4, column = 8 * (lane % 4);
    if (warp >= kHalfWarps) {
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
            st_shared_8(partial(smem, warp - kHalfWarps, token, n) + column, acc[n].c[0], acc[n].c[1]);
            st_shared_8(partial(smem, warp - kHalfWarps, token + 8, n) + column, acc[n].c[2], acc[n].c[3]);
        }
    }
    bar_sync<kComputeBarrier, kComputeThreads>();
    if (warp < kHalfWarps) {
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const SharedAddr place = partial(smem, warp, token + 8 * half, n) + column;
                const Vec8 other = ld_shared_8(place);
                st_shared_8(place, acc[n].c[2 * half] + __uint_as_float(other.word[0]),
                            acc[n].c[2 * half + 1] + __uint_as_float(other.word[1]));
            }
        }
    }
    bar_sync<kComputeBarrier, kComputeThreads>();
}

// The sums over the block of rows 4 * quad.. of `token`.
__device__ Vec16 sum_partials(const Smem& smem, int token, int quad) {
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < kHalfWarps; ++w) {
        const Vec16 v = ld_shared_16(partial(smem, w, token, quad / 2) + quad % 2 * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(v.word[i]);
    }
    Vec16 bits;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits.word[i] = __float_as_uint(sum[i]);
    return bits;
}

// Add the peer's sums of four rows and round to BF16; a pair of lanes then holds eight.
__device__ Vec16 add_received(const Vec16& mine, const Vec16& theirs, int lane) {
    float sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __uint_as_float(mine.word[i]) + __uint_as_float(theirs.word[i]);
    return gather_octet(sum, lane);
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_ksplit16x2_dsa_late_release_start(const __grid_constant__ Params params) {
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
    const int slice = part % kSplits, peer = part ^ 1;
    start_weights(params, smem, head, part, warp, lane);
    if (threadIdx.x < kColumns / 8)
        cp_async_16(smem.w_qa() + 16 * threadIdx.x, params.w_qa + kColumns * slice + 8 * threadIdx.x);
    cp_async_commit_group();
    const int column = kColumns * slice + kWarpColumns * warp + 8 * (lane % 4);
    const float q_scale_inv = load_query_scale(params);
    barrier_cluster_wait();
    start_step();

    float* sums = reinterpret_cast<float*>(storage + kSmemSums);
    Columns x;
    load_columns(x, params, first, first + count, column, lane);
    cp_async_wait_group<0>();  // the barrier of the sums shows every thread's share to all

    // Q_B over this CTA's half of K.
    float rr[2];
    reciprocal_rms(rr, x, smem, sums, params.eps, peer, warp, lane);
    mbarrier_wait(smem.weights_barrier(), 0);
    Acc acc[kRowTiles] = {};
    QcRows q_c = {};
    if (kStoreQc && head == 0 && warp / 2 == part / kSplits) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = lane / 4 + 8 * half;
            if (token < count) q_c[half] = q_c_row(params, first + token) + kColumns * slice;
        }
    }
    multiply(acc, x, rr, q_c, smem, warp, lane);
    store_partials(acc, smem, warp, lane);

    // The first threads add the rows that stay, the next ones those that go to the peer.
    const int owner = threadIdx.x / kOwnQuads, token = threadIdx.x % kOwnQuads / 6;
    const int quad = threadIdx.x % 6;
    const SharedAddr received = smem.received() + 4 * (token * kRowsPerCta + 4 * quad);
    if (owner == 1) {
        const Vec16 sum = sum_partials(smem, token, 6 * (slice ^ 1) + quad);
        st_async(mapa(received, peer), sum, mapa(smem.received_barrier(), peer));
    } else if (owner == 0) {
        const Vec16 sum = sum_partials(smem, token, 6 * slice + quad);
        mbarrier_wait(smem.received_barrier(), 0);
        const Vec16 octet = add_received(sum, ld_shared_16(received), lane);
        const int head_row = kRowsPerCta * part + (quad / 2) * 8;
        if (token >= count) {
        } else if (head_row < kNopeColumns) {
            const SharedAddr target = smem.nope() + token * kNopePitch + 2 * head_row;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int rank = lane % 2 * 4 + j;
                st_async(mapa(target, rank), octet, mapa(smem.nope_barrier(), rank));
            }
        } else if (lane % 2 == 0) {
            store_rope8(params, first + token, head, head_row, octet, q_scale_inv);
        }
    }

    // Absorb: warp w owns latent columns 8w.. of this CTA's 64.
    const UkFragments w_uk = load_uk_fragments(smem.uk(), warp, lane);
    mbarrier_wait(smem.nope_barrier(), 0);
    const Acc latent = absorb16(smem.nope(), w_uk, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = lane / 4 + 8 * half;
        if (token >= count) continue;
        Query* query = query_row(params, first + token, head);
        store_query_pair(query + kUkColumns * part + 8 * warp + 2 * (lane % 4), latent.c[2 * half],
                         latent.c[2 * half + 1], q_scale_inv);
    }
    end_step();
}
