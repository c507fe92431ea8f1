// query_folded8_release_start: MLA decode query, scheme `folded`.
// RMSNorm of q_a, Q_B, W_UK absorption and the paged KV insert in one kernel.
//
// A cluster of 8 CTAs owns one head for 8 tokens; CTA `part` owns 16 nope and 8 rope rows of Q_B over
// all of K, then 64 latent columns. w_qa is folded into the rows before the wait, so that x is multiplied
// as it comes, once a cluster; the reciprocal RMS is a factor of the sums at the end.
//
// warps  do
// 0..7   products over 192 columns of K each, 0..3 add up nope, absorb 8 latent columns each
// 8      x's copy, squares of the CTA's 192 columns, a token's KV row, rope
//
// barrier   guards                  filled by                         waited for by
// weights   Q_B's rows              their bulk copies                 warps 0..7, which fold w_qa in
// folded    the place of x          warp 8 of every CTA               warp 8, before it copies x
// x         x                       a bulk copy a token               all
// sums      sums of squares         warp 8 of every CTA               all
// rope      products of rope rows   a lane of warps 0..7              warp 8
// nope      nope columns            warps 0..3 of every CTA           warps 0..7
#include "query/absorb.cuh"
#include "query/fold.cuh"
#include "query/kv/fp8_multiply.cuh"
#include "query/store.cuh"
#include "release.cuh"


constexpr int kNumTokens = 8;  // token rows of a CTA's tile
constexpr int kClusterSize = 8;  // CTAs that share one head
constexpr int kNumThreads = 288;  
constexpr int kCtasPerSm = 2;
constexpr bool kDsa = false;  // the stock C++ form of the RMSNorm
constexpr bool kStoreQc = false;
constexpr bool kLate = false;
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
    uint8_t* cache;  // [any, page_size, 576]
    const int64_t* slots;  // [num_rows]
    const float* q_scale_inv;  // []
    const float* k_scale_inv;  // []
    e4m3* out;  // [num_rows, heads, 576]
    int64_t qkv_stride;  // elements, qkv
    int64_t w_uk_stride;  // elements, w_uk
    int64_t page_stride;  // elements, cache
    int64_t out_stride;  // elements, out
    int32_t page_size;  // extent, cache
    float eps;  // of the RMSNorms
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 128, "the host packs 128 bytes");

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

namespace {

// Eight rope columns of a token's query, Q_B's rows from `head_row` of the head on, in BF16: to the query, and with
// DCP to every rank's mailbox.
[[maybe_unused]] __device__ void store_rope8(const Params& params, int token, int head, int head_row, const Vec16& octet,
                                             float scale) {
    store_query8(query_row(params, token, head) + kKvColumns + head_row - kNopeColumns, octet, scale);
}

}  // namespace

constexpr int kSmemWeights = 0;
constexpr int kSmemUk = 75264;
constexpr int kSmemPartials = 91648;
constexpr int kSmemRope = 95744;
constexpr int kSmemNope = 97792;
constexpr int kSmemSums = 99968;
constexpr int kSmemBarriers = 100224;

constexpr int kNopeRows = kNopeColumns / kClusterSize;  // of Q_B, this CTA's
constexpr int kRopeRows = kRowsPerCta - kNopeRows;
constexpr int kRowBytes = 2 * kLoraColumns;
constexpr int kPitch = kRowBytes + 64;  // 196 * 16: rows g, g+1 use other banks
constexpr int kWarpColumns = kLoraColumns / kComputeWarps;
constexpr int kBlocks = kWarpColumns / 32;  // a lane's 16-byte pieces of a row
constexpr uint16_t kAllRanks = (1 << kClusterSize) - 1;

static_assert(kNumTokens == 8, "tokens are the N side of one MMA");
static_assert(kNopeRows == 16 && kRopeRows == 8, "nope rows, and both parts of the rope rows, are the M side");
static_assert(kComputeWarps == kClusterSize, "warp 8 of CTA w squares the columns that warp w multiplies");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr x() const { return base + kSmemWeights; }  // in the place of the first 8 rows
    __device__ SharedAddr uk() const { return base + kSmemUk; }
    __device__ SharedAddr partials() const { return base + kSmemPartials; }
    __device__ SharedAddr rope() const { return base + kSmemRope; }
    __device__ SharedAddr nope() const { return base + kSmemNope; }
    __device__ SharedAddr sums() const { return base + kSmemSums; }
    __device__ SharedAddr weights_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr folded_barrier() const { return base + kSmemBarriers + 8; }
    __device__ SharedAddr x_barrier() const { return base + kSmemBarriers + 16; }
    __device__ SharedAddr sums_barrier() const { return base + kSmemBarriers + 24; }
    __device__ SharedAddr rope_barrier() const { return base + kSmemBarriers + 32; }
    __device__ SharedAddr nope_barrier() const { return base + kSmemBarriers + 40; }
};

using Columns = Vec16[kBlocks];

__device__ void start_barriers(const Smem& smem, int count) {
    mbarrier_init(smem.weights_barrier(), 1);
    mbarrier_init(smem.folded_barrier(), kClusterSize);
    mbarrier_init(smem.x_barrier(), 1);
    mbarrier_init(smem.sums_barrier(), 1);
    mbarrier_init(smem.rope_barrier(), kComputeWarps);
    mbarrier_init(smem.nope_barrier(), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.weights_barrier(), kRowsPerCta * kRowBytes);
    mbarrier_arrive_expect_tx(smem.x_barrier(), count * kRowBytes);
    mbarrier_arrive_expect_tx(smem.sums_barrier(), count * kClusterSize * 4);
    mbarrier_arrive_expect_tx(smem.nope_barrier(), count * kNopeColumns * 2);
}

// Start the bulk copies of this CTA's Q_B rows, three a warp.
__device__ void start_weights(const Params& params, const Smem& smem, int head, int part, int warp, int lane) {
    if (lane != 0) return;
    const bf16* w_qb = params.w_qb + static_cast<int64_t>(head) * kHeadRows * kLoraColumns;
#pragma unroll
    for (int row = warp; row < kRowsPerCta; row += kComputeWarps) {
        const int rope_row = row - kNopeRows;
        const int of_head = rope_row < 0 ? kNopeRows * part + row : kNopeColumns + kRopeRows * part + rope_row;
        cp_async_bulk(smem.weights() + row * kPitch, w_qb + of_head * kLoraColumns, kRowBytes, smem.weights_barrier());
    }
}

// Fold w_qa into this lane's places of the rows: nope rows g, g+8 come to registers, rope row g stays in
// shared memory, in its own place and in that of nope row g+8.
__device__ void fold(Operand (&nope)[kBlocks], const bf16* w_qa, const Smem& smem, SharedAddr row) {
    Columns weights;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) weights[j] = ld_global_nc_16(w_qa + 32 * j);
    mbarrier_wait(smem.weights_barrier(), 0);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        const SharedAddr place = row + 64 * j;
        nope[j] = fold_two_rows(ld_shared_16(place), ld_shared_16(place + 8 * kPitch), weights[j]);
        const Operand rope = fold_in_two_parts(ld_shared_16(place + 16 * kPitch), weights[j]);
        st_shared_16(place + 16 * kPitch, rope.step[0]);
        st_shared_16(place + 8 * kPitch, rope.step[1]);
    }
}

// This lane's columns of the token in `row` of x.
__device__ void load_columns(Columns& x, const Smem& smem, int row, int column) {
    mbarrier_wait(smem.x_barrier(), 0);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) x[j] = ld_shared_16(smem.x() + row * kPitch + 2 * column + 64 * j);
}

// partials[warp][row][token] = this warp's sums over its columns of a nope row; the tokens of rows 4..7 of
// every 8 are swapped in halves, for the banks.
__device__ SharedAddr partial(SharedAddr partials, int rows, int warp, int row, int token) {
    return partials + 4 * ((warp * rows + row) * kNumTokens + (token ^ (row & 4)));
}

// This lane's products: nope rows from registers, rope rows from their places in shared memory, where the
// upper half of the M side holds their low parts.
__device__ void multiply(const Operand (&nope_rows)[kBlocks], SharedAddr rope_rows, const Columns& x,
                         SharedAddr nope_target, SharedAddr rope_target) {
    Acc nope[2] = {}, rope[2] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            mma_operand(nope[s], nope_rows[j].step[s], x[j].word[2 * s], x[j].word[2 * s + 1]);
            const Vec16 w = ld_shared_16(rope_rows + 64 * j - s * 8 * kPitch);
            mma_operand(rope[s], w, x[j].word[2 * s], x[j].word[2 * s + 1]);
        }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        nope[0].c[i] += nope[1].c[i];
        rope[0].c[i] += rope[1].c[i];
    }
    st_shared_8(nope_target, nope[0].c[0], nope[0].c[1]);
    st_shared_8(nope_target + 4 * 8 * kNumTokens, nope[0].c[2], nope[0].c[3]);
    st_shared_8(rope_target, rope[0].c[0] + rope[0].c[2], rope[0].c[1] + rope[0].c[3]);
}

__device__ float sum_of_8(const float (&v)[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// The sum over the warps of one row's products with one token.
__device__ float sum_partials(SharedAddr partials, int rows, int row, int token) {
    float v[kComputeWarps];
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) v[w] = ld_shared_f32(partial(partials, rows, w, row, token));
    return sum_of_8(v);
}

// Reciprocal RMS of `token` from the sums of squares of all CTAs.
__device__ float reciprocal_rms(const Smem& smem, int token, float eps) {
    float v[kClusterSize];
#pragma unroll
    for (int i = 0; i < kClusterSize; i += 4) {
        const Vec16 quad = ld_shared_16(smem.sums() + 4 * (token * kClusterSize + i));
#pragma unroll
        for (int k = 0; k < 4; ++k) v[i + k] = __uint_as_float(quad.word[k]);
    }
    return query_rrms(sum_of_8(v), eps);
}

// Send this CTA's share of the sums of squares to all: lane (g, t) has columns 8t.. of every 32 of token g.
__device__ void send_squares(const Smem& smem, const Columns& x, int count, int part, int lane) {
    float squares[2] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) squares[j % 2] = add_squares(squares[j % 2], x[j]);
    const float sum = sum_lanes<4>(squares[0] + squares[1]);
    const int token = lane / 4;
    if (token >= count) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int rank = lane % 4 * 2 + i;
        st_async(mapa(smem.sums() + 4 * (token * kClusterSize + part), rank), sum, mapa(smem.sums_barrier(), rank));
    }
}

// Rope columns of the query: a lane a row, an octet of lanes a token.
__device__ void store_rope(const Params& params, const Smem& smem, int first, int count, int head, int part,
                           int lane, float q_scale_inv) {
    mbarrier_wait(smem.sums_barrier(), 0);
    float rr[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) rr[i] = reciprocal_rms(smem, min(4 * i + lane / 8, count - 1), params.eps);
    mbarrier_wait(smem.rope_barrier(), 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int token = 4 * i + lane / 8;
        const Vec16 octet = gather_octet(sum_partials(smem.rope(), kRopeRows, lane % 8, token) * rr[i], lane);
        if (token < count && lane % 8 == 0)
            store_query8(query_row(params, first + token, head) + kKvColumns + kRopeRows * part, octet, q_scale_inv);
    }
}

// Warp 8.
__device__ void side_warp(const Params& params, const Smem& smem, int first, int count, int head, int part, int lane) {
    const KvWeights w_kva = load_kv_weights(params.w_kva, lane);
    const KvScale scale = load_kv_scale(params);
    const float q_scale_inv = load_query_scale(params);
    const int kv_token = head * kClusterSize + part;
    const bool sends_x = lane == 0 && part < count;
    barrier_cluster_wait();
    __syncthreads();
    if (lane < count) mbarrier_arrive_release_cluster(mapa(smem.folded_barrier(), lane));
    if (sends_x) mbarrier_wait_acquire_cluster(smem.folded_barrier(), 0);
    start_step();

    // x of token `part` to every CTA; the KV row on its way meanwhile.
    if (sends_x)
        cp_async_bulk_multicast(smem.x() + part * kPitch, params.qkv + (first + part) * params.qkv_stride, kRowBytes,
                                smem.x_barrier(), kAllRanks);
    KvInsert kv = {};
    if (kv_token < count) kv = load_kv_insert(params, first + kv_token, lane);
    Columns x;
    load_columns(x, smem, min(lane / 4, count - 1), kWarpColumns * part + 8 * (lane % 4));
    send_squares(smem, x, count, part, lane);
    if (kv_token < count) store_kv_insert(params, kv, w_kva, scale, lane);
    store_rope(params, smem, first, count, head, part, lane, q_scale_inv);
    end_step();
}

// q_c of token `part`, which the products did without: 8 columns a thread.
__device__ void store_q_c(const Params& params, const Smem& smem, int first, int part) {
    const int column = 8 * threadIdx.x;
    if (column >= kLoraColumns) return;
    const Vec16 x = ld_shared_16(smem.x() + part * kPitch + 2 * column);
    const float rr = reciprocal_rms(smem, part, params.eps);
    store_global16(q_c_row(params, first + part) + column, normalise(x, rr, ld_global_nc_16(params.w_qa + column)));
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_folded8_release_start(const __grid_constant__ Params params) {
    const Smem smem = {shared_addr(dynamic_shared())};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int count = min(kNumTokens, params.num_rows - first);
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    if (count <= 0) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: weights only.
    if (threadIdx.x == kComputeThreads) start_barriers(smem, count);
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (warp == kComputeWarps) return side_warp(params, smem, first, count, head, part, lane);
    start_weights(params, smem, head, part, warp, lane);
    stage_uk<kComputeThreads>(smem.uk(), params.w_uk + head * params.w_uk_stride, part, threadIdx.x);
    cp_async_commit_group();

    // Fold w_qa in; then x may take the place of the rows, here as in every CTA.
    const int g = lane / 4, t = lane % 4, column = kWarpColumns * warp + 8 * t;
    const SharedAddr row = smem.weights() + g * kPitch + 2 * column;
    Operand nope_rows[kBlocks];
    fold(nope_rows, params.w_qa + column, smem, row);
    cp_async_wait_group<0>();
    barrier_cluster_wait();
    __syncthreads();
    const UkFragments w_uk = load_uk_fragments(smem.uk(), warp, lane);
    const SharedAddr nope_target = partial(smem.partials(), kNopeRows, warp, g, 2 * t);
    const SharedAddr rope_target = partial(smem.rope(), kRopeRows, warp, g, 2 * t);
    pmevent();  // else ptxas puts the folding off until x is there
    start_step();

    // Q_B: K split over the warps.
    Columns x;
    load_columns(x, smem, min(g, count - 1), column);
    multiply(nope_rows, row + 16 * kPitch, x, nope_target, rope_target);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem.rope_barrier());
    bar_sync<kComputeBarrier, kComputeThreads>();

    // A thread a value: nope octets go to CTA lane % 8.
    if (threadIdx.x < kNumTokens * kNopeRows) {
        const int octet_row = warp / 2 * 8, token = warp % 2 * 4 + lane / 8, rank = lane % 8;
        const Vec16 octet = gather_octet(sum_partials(smem.partials(), kNopeRows, octet_row + lane % 8, token), lane);
        const SharedAddr target = smem.nope() + token * kNopePitch + 2 * (kNopeRows * part + octet_row);
        if (token < count) st_async(mapa(target, rank), octet, mapa(smem.nope_barrier(), rank));
    }

    // While they travel: the reciprocal RMS.
    const float q_scale_inv = load_query_scale(params);
    mbarrier_wait(smem.sums_barrier(), 0);
    const float rr = reciprocal_rms(smem, min(g, count - 1), params.eps);
    if (kStoreQc && head == 0 && part < count) store_q_c(params, smem, first, part);

    // Absorb: warp w owns latent columns 8w.. of this CTA's 64.
    mbarrier_wait(smem.nope_barrier(), 0);
    const Acc latent = absorb8(smem.nope(), w_uk, lane);
    if (g < count) {
        Query* query = query_row(params, first + g, head) + kUkColumns * part + 8 * warp + 2 * t;
        store_query_pair(query, latent.c[0] * rr, latent.c[1] * rr, q_scale_inv);
    }
    end_step();
}
