// index_front_ksplit32x4_fp4: the DSA indexer's front: RMSNorm of q_a, the wq_b projection, quantised queries, head
// weights and keys.
//
// A cluster of 4 CTAs owns one of the 32 indexer heads for 32 tokens, 16 a step with the weights
// loaded once. CTA `part` multiplies the head's 128 rows over a quarter of K, then finishes a quarter
// of the tokens. Two exchanges: sums of squares to all, partial products to the owner of the tokens.
#include "index_front/key.cuh"
#include "ptx/mma.cuh"
#include "release.cuh"

constexpr int kNumTokens = 32;  // token rows of a CTA's tile
constexpr int kClusterSize = 4;  // CTAs that share one head
constexpr int kNumThreads = 288;  // 8 compute warps and the keys' warp
constexpr int kCtasPerSm = 2;
constexpr bool kMx = false;  // key scales as UE8M0 bytes
constexpr bool kFp4 = true;  // MXFP4 queries and keys
constexpr Release kRelease = Release::wait;

constexpr int kLoraColumns = 1536;
constexpr int kNumHeads = 32;
constexpr int kHeadColumns = 128;
constexpr int kComputeWarps = kNumThreads / 32 - 1;
constexpr int kComputeThreads = 32 * kComputeWarps;
constexpr int kComputeBarrier = 1;             // block barrier of the compute warps

struct Params {
    const bf16* projected;  // [num_rows, >=1536]
    const bf16* w_qa;  // [1536]
    const bf16* wq_b;  // [4096, 1536]
    const float* norm_w;  // [128]
    const float* norm_b;  // [128]
    uint8_t* cache;  // [any, 64, 68]
    const int64_t* slots;  // [num_rows]
    uint8_t* q_out;  // [num_rows, 32, 64]
    uint8_t* q_scale;  // [num_rows, 32, 4]
    bf16* w_out;  // [num_rows, 32]
    int64_t projected_stride;  // elements, projected
    int64_t page_stride;  // elements, cache
    int32_t key;  // column of the indexer key
    int32_t weight;  // column of the head weights
    float eps;  // of the RMSNorm
    float key_eps;  // of the key LayerNorm
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 120, "the host packs 120 bytes");

namespace {

// The keys' warp: the rows of this tile are dealt over all of its CTAs.
__device__ void insert_keys(const Params& params, int first, int count, int cta, int lane) {
    const KeyNorm norm = load_key_norm(params.norm_w, params.norm_b, lane);
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();
    for (int token = first + cta; token < first + count; token += kNumHeads * kClusterSize) {
        const int64_t slot = ld_global_cg_s64(params.slots + token);
        const Vec8 key = ld_global_cg_8(params.projected + token * params.projected_stride + params.key + 4 * lane);
        if (slot < 0) continue;
        float y[4];
        normalise_key(y, key, norm, params.key_eps);
        uint8_t* page = params.cache + slot / kPageTokens * params.page_stride;
        if constexpr (kFp4) store_key_fp4(page, slot % kPageTokens, y, lane);
        else store_key_fp8<kMx>(page, slot % kPageTokens, y, lane);
    }
}

}  // namespace

constexpr int kSmemWeights = 0;
constexpr int kSmemX = 100352;  // normalised x, then the peers' partial products
constexpr int kSmemSums = 112896;
constexpr int kSmemBarriers = 113152;

constexpr int kColumns = kLoraColumns / kClusterSize;  // of K, this CTA's
constexpr int kPitch = 2 * kColumns + 16;              // bytes; an odd multiple of 16 for ldmatrix
constexpr int kStep = 16;                              // tokens: the M side of one MMA
constexpr int kOwned = kStep / kClusterSize;           // tokens of a step that a CTA finishes
constexpr int kTokenLanes = 16;                        // lanes that share a token's columns
constexpr int kPieces = kColumns / 8 / kTokenLanes;    // 16-byte pieces a lane
constexpr int kWarpRows = kHeadColumns / kComputeWarps;
constexpr int kSliceBytes = kOwned * kHeadColumns * 4; // of partial products

static_assert(kNumTokens % kStep == 0, "whole steps");
static_assert(kWarpRows == 16, "two MMA tiles of rows a warp");
static_assert(kStep * kTokenLanes == kComputeThreads, "one token a thread");
static_assert(kClusterSize * kSliceBytes <= kStep * kPitch, "partial products fit where x was");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr x() const { return base + kSmemX; }
    __device__ SharedAddr partials() const { return base + kSmemX; }
    __device__ SharedAddr sums() const { return base + kSmemSums; }
    __device__ SharedAddr sums_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr ready_barrier() const { return base + kSmemBarriers + 8; }
    __device__ SharedAddr partials_barrier() const { return base + kSmemBarriers + 16; }
};

using Columns = Vec16[kPieces];  // a thread's share of one token's columns
using Products = Acc[2];         // of 16 tokens and a warp's 16 rows

__device__ void start_barriers(const Smem& smem) {
    mbarrier_init(smem.sums_barrier(), 1);
    mbarrier_init(smem.ready_barrier(), kClusterSize);
    mbarrier_init(smem.partials_barrier(), 1);
    fence_mbarrier_init();
}

// Start copying this CTA's quarter of the head's rows.
// NOTE: by 16 bytes: 128 bulk copies of 768 bytes would queue behind one another.
__device__ void start_weights(const Params& params, const Smem& smem, int head, int part) {
    cp_async_rows<kHeadColumns, 2 * kColumns, kPitch, kComputeThreads>(
        smem.weights(), params.wq_b + head * kHeadColumns * kLoraColumns + part * kColumns, 2 * kLoraColumns,
        threadIdx.x);
    cp_async_commit_group();
}

// This thread's columns of `token`; zeros from `end` on.
__device__ void load_columns(Columns& x, const Params& params, int token, int end, int column) {
    const bf16* row = params.projected + token * params.projected_stride + column;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        if (token < end) x[i] = ld_global_cg_16(row + 8 * kTokenLanes * i);
        else x[i] = {};
    }
}

// Reciprocal RMS of this thread's token: its quarter's sum of squares goes to all CTAs.
__device__ float reciprocal_rms(const Columns& x, const Smem& smem, float eps, int part, uint32_t phase) {
    const int token = threadIdx.x / kTokenLanes, sub = threadIdx.x % kTokenLanes;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) squares = add_squares(squares, x[i]);
    squares = sum_lanes<kTokenLanes>(squares);
    if (sub < kClusterSize)
        st_async(mapa(smem.sums() + 4 * (part * kStep + token), sub), squares, mapa(smem.sums_barrier(), sub));
    mbarrier_wait(smem.sums_barrier(), phase);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kClusterSize; ++i) sum += ld_shared_f32(smem.sums() + 4 * (i * kStep + token));
    return rrms_dsa(sum, eps);
}

// 16 tokens times this warp's 16 rows over the CTA's columns, in two sets of sums for shorter chains.
__device__ void multiply(Products& acc, const Smem& smem, int warp, int lane) {
    const SharedAddr a_row = smem.x() + lane % 16 * kPitch + 16 * (lane / 16);
    const SharedAddr b_row = smem.weights() + (kWarpRows * warp + lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
    Products odd = {};
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
        const Vec16 a = ldmatrix_x4(a_row + 32 * k), b = ldmatrix_x4(b_row + 32 * k);
        Products& sums = k % 2 ? odd : acc;
        mma_m16n8k16(sums[0], a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1]);
        mma_m16n8k16(sums[1], a.word[0], a.word[1], a.word[2], a.word[3], b.word[2], b.word[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i / 4].c[i % 4] += odd[i / 4].c[i % 4];
}

// Tell all CTAs that x here is read, and wait until theirs are: partial products take its place.
__device__ void exchange_ready(const Smem& smem, uint32_t phase) {
    bar_sync<kComputeBarrier, kComputeThreads>();
    if (threadIdx.x < kClusterSize) mbarrier_arrive_release_cluster(mapa(smem.ready_barrier(), threadIdx.x));
    mbarrier_wait(smem.ready_barrier(), phase);
}

// Slice `part` of the partial products goes to the owners of the tokens.
__device__ void send_partials(const Products& acc, const Smem& smem, int part, int warp, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = lane / 4 + 8 * half, owner = token / kOwned;
        const int place = token % kOwned * kHeadColumns + kWarpRows * warp + 2 * (lane % 4);
        const SharedAddr target = mapa(smem.partials() + part * kSliceBytes + 4 * place, owner);
        const SharedAddr barrier = mapa(smem.partials_barrier(), owner);
#pragma unroll
        for (int n = 0; n < 2; ++n)
            st_async(target + 32 * n, acc[n].c[2 * half], acc[n].c[2 * half + 1], barrier);
    }
}

// Four columns of an owned token, rounded to BF16.
__device__ void add_partials(float (&y)[4], const Smem& smem, int token, int lane) {
    float sum[4] = {};
#pragma unroll
    for (int slice = 0; slice < kClusterSize; ++slice) {
        const Vec16 v = ld_shared_16(smem.partials() + slice * kSliceBytes + 4 * (token * kHeadColumns + 4 * lane));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(v.word[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const Pair pair = from_bf16x2(to_bf16x2(sum[i], sum[i + 1]));
        y[i] = pair.low;
        y[i + 1] = pair.high;
    }
}

// One warp: the head's 128 columns of a token, four a lane. Returns the scale of the head weight.
// MXFP4: a scale for every 32 columns, which are eight lanes'.
__device__ float store_query(const Params& params, const float (&y)[4], int64_t place, int lane) {
    const int exponent = mxfp4_exponent(max_lanes<8>(amax4(y)));
    *reinterpret_cast<uint16_t*>(params.q_out + place * (kHeadColumns / 2) + 2 * lane) = to_e2m1x4(y, pow2(-exponent));
    if (lane % 8 == 0) params.q_scale[place * 4 + lane / 8] = exponent + 127;
    return 1.0f;
}
}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_index_front_ksplit32x4_fp4(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const Smem smem = {shared_addr(storage)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int end = min(first + kNumTokens, params.num_rows);
    if (first >= end) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: weights only.
    if (threadIdx.x == kComputeThreads) start_barriers(smem);
    if (warp < kComputeWarps) start_weights(params, smem, head, part);
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (warp == kComputeWarps) {
        barrier_cluster_wait();
        insert_keys(params, first, end - first, head * kClusterSize + part, lane);
        return;
    }
    const int column = kColumns * part + threadIdx.x % kTokenLanes * 8;
    Vec16 w_qa[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) w_qa[i] = ld_global_nc_16(params.w_qa + column + 8 * kTokenLanes * i);
    barrier_cluster_wait();
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();

    const int token = threadIdx.x / kTokenLanes;
    const SharedAddr place = smem.x() + token * kPitch + threadIdx.x % kTokenLanes * 16;
    Columns x;
    load_columns(x, params, first + token, end, column);
#pragma unroll 1
    for (int step = 0; first + step * kStep < end; ++step) {
        const uint32_t phase = step % 2;
        const int base = first + step * kStep, row = base + kOwned * part + warp;  // row: this warp finishes
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(smem.sums_barrier(), kClusterSize * kStep * 4);
            mbarrier_arrive_expect_tx(smem.partials_barrier(), kClusterSize * kSliceBytes);
        }

        // Normalise this CTA's columns into shared memory.
        const float rr = reciprocal_rms(x, smem, params.eps, part, phase);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) st_shared_16(place + 16 * kTokenLanes * i, normalise(x[i], rr, w_qa[i]));
        load_columns(x, params, base + kStep + token, end, column);
        cp_async_wait_group<0>();  // the first barrier shows every thread's share of the weights to all
        bar_sync<kComputeBarrier, kComputeThreads>();

        // The head's rows over this CTA's columns; the products go to the owners of the tokens.
        Products acc = {};
        multiply(acc, smem, warp, lane);
        exchange_ready(smem, phase);
        send_partials(acc, smem, part, warp, lane);

        // A warp finishes a token.
        if (warp < kOwned) {
            uint16_t weight = 0;
            if (row < end) weight = ld_global_cg_2(params.projected + row * params.projected_stride + params.weight + head);
            mbarrier_wait(smem.partials_barrier(), phase);
            float y[4];
            add_partials(y, smem, warp, lane);
            if (row < end) {
                const int64_t place = static_cast<int64_t>(row) * kNumHeads + head;
                const float scale = store_query(params, y, place, lane);
                const uint32_t out = to_bf16x2((bf16_low(weight) * scale) * 0x1p-6f, 0.0f);
                if (lane == 0) params.w_out[place] = {static_cast<uint16_t>(out)};
            }
        }
        bar_sync<kComputeBarrier, kComputeThreads>();  // partial products are read: x may take their place
    }
}
