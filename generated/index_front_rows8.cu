// index_front_rows8: the DSA indexer's front: RMSNorm of q_a, the wq_b projection, quantised queries, head
// weights and keys.
//
// A cluster of 4 CTAs owns one of the 32 indexer heads for 8 tokens, 8 a step with the weights
// loaded once; CTA `part` owns 32 wq_b rows over all of K. One exchange: the largest magnitudes.
#include "index_front/key.cuh"
#include "ptx/mma.cuh"
#include "release.cuh"

constexpr int kNumTokens = 8;  // token rows of a CTA's tile
constexpr int kClusterSize = 4;  // CTAs that share one head
constexpr int kNumThreads = 288;  // 8 compute warps and the keys' warp
constexpr int kCtasPerSm = 2;
constexpr bool kMx = false;  // key scales as UE8M0 bytes
constexpr bool kFp4 = false;  // MXFP4 queries and keys
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
    uint8_t* cache;  // [any, 64, 132]
    const int64_t* slots;  // [num_rows]
    e4m3* q_out;  // [num_rows, 32, 128]
    bf16* w_out;  // [num_rows, 32]
    int64_t projected_stride;  // elements, projected
    int64_t page_stride;  // elements, cache
    int32_t key;  // column of the indexer key
    int32_t weight;  // column of the head weights
    float eps;  // of the RMSNorm
    float key_eps;  // of the key LayerNorm
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 112, "the host packs 112 bytes");

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
constexpr int kSmemWqa = 100352;
constexpr int kSmemPartials = 103424;
constexpr int kSmemSums = 113664;
constexpr int kSmemAmax = 113920;
constexpr int kSmemBarriers = 114176;

constexpr int kRows = kHeadColumns / kClusterSize;   // of wq_b, this CTA's
constexpr int kStep = 8;                             // tokens: half the M side of one MMA
constexpr int kWeightPitch = 2 * kLoraColumns + 64;  // bytes; 196 * 16: rows g, g+1 use other banks
constexpr int kPartialPitch = kRows + 8;             // floats; rows of tokens use other banks
constexpr int kWarpColumns = kLoraColumns / kComputeWarps;
constexpr int kBlocks = kWarpColumns / 32;           // a lane's 16-byte pieces of a row
constexpr int kTiles = kRows / 8;

static_assert(kNumTokens % kStep == 0, "whole steps");
static_assert(kRows == 32 && kStep == kComputeWarps, "a warp finishes the 32 columns of one token");

namespace {

struct Smem {
    SharedAddr base;
    __device__ SharedAddr weights() const { return base + kSmemWeights; }
    __device__ SharedAddr w_qa() const { return base + kSmemWqa; }
    __device__ SharedAddr partials() const { return base + kSmemPartials; }
    __device__ SharedAddr amax(int step) const { return base + kSmemAmax + step % 2 * kClusterSize * kStep * 4; }
    __device__ SharedAddr weights_barrier() const { return base + kSmemBarriers; }
    __device__ SharedAddr amax_barrier(int step) const { return base + kSmemBarriers + 8 + step % 2 * 8; }
};

using Columns = Vec16[kBlocks];

__device__ void start_barriers(const Smem& smem) {
    mbarrier_init(smem.weights_barrier(), 1);
    mbarrier_init(smem.amax_barrier(0), 1);
    mbarrier_init(smem.amax_barrier(1), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(smem.weights_barrier(), kRows * 2 * kLoraColumns);
}

__device__ void start_weights(const Params& params, const Smem& smem, int head, int part, int warp, int lane) {
    const bf16* wq_b = params.wq_b + (head * kHeadColumns + part * kRows) * kLoraColumns;
    if (lane == 0) {
        for (int row = warp; row < kRows; row += kComputeWarps)
            cp_async_bulk(smem.weights() + row * kWeightPitch, wq_b + row * kLoraColumns, 2 * kLoraColumns,
                          smem.weights_barrier());
    }
    if (threadIdx.x < kLoraColumns / 8) cp_async_16(smem.w_qa() + 16 * threadIdx.x, params.w_qa + 8 * threadIdx.x);
    cp_async_commit_group();
}

// x of token `first` + g, this warp's columns; zeros from `end` on.
__device__ void load_columns(Columns& x, const Params& params, int first, int end, int column, int lane) {
    const int token = first + lane / 4;
    const bf16* row = params.projected + token * params.projected_stride + column;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (token < end) x[j] = ld_global_cg_16(row + 32 * j);
        else x[j] = {};
    }
}

// The sum over the block of the squares of token g; each warp brings the diagonal of its products.
__device__ float sum_of_squares(float* sums, const Columns& x, int warp, int lane) {
    const int token = lane / 4;
    SquareSums squares = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) add_token_squares(squares, x[j]);
    if (lane % 4 == token / 2) sums[token * kComputeWarps + warp] = diagonal(squares, token);
    bar_sync<kComputeBarrier, kComputeThreads>();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) total += sums[token * kComputeWarps + w];
    return total;
}

// Split K over the warps: this warp's columns of all rows times 8 tokens. Lane (g, t) holds columns 8t..
// of every 32 of token g and of the weight rows g, g+8 ..; the upper half of the MMA's 16 rows is zero.
__device__ void multiply(const Columns& x, float rr, const Smem& smem, int column, int warp, int lane) {
    const SharedAddr row = smem.weights() + (lane / 4) * kWeightPitch + 2 * column;
    Acc acc[kTiles] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        const Vec16 y = normalise(x[j], rr, ld_shared_16(smem.w_qa() + 2 * column + 64 * j));
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            const Vec16 w = ld_shared_16(row + 64 * j + 8 * n * kWeightPitch);
            mma_m16n8k16(acc[n], y.word[0], 0, y.word[1], 0, w.word[0], w.word[1]);
            mma_m16n8k16(acc[n], y.word[2], 0, y.word[3], 0, w.word[2], w.word[3]);
        }
    }
    const int mine = (warp * kStep + lane / 4) * kPartialPitch + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
        st_shared_8(smem.partials() + 4 * (mine + 8 * n), acc[n].c[0], acc[n].c[1]);
}

// The largest magnitude of the head's 128 columns: every CTA sends its own to all four.
__device__ float exchange_amax(const Smem& smem, float mine, int token, int part, int step, int lane) {
    if (lane < kClusterSize)
        st_async(mapa(smem.amax(step) + 4 * (part * kStep + token), lane), mine, mapa(smem.amax_barrier(step), lane));
    mbarrier_wait(smem.amax_barrier(step), step / 2 % 2);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kClusterSize; ++i)
        largest = fmaxf(largest, ld_shared_f32(smem.amax(step) + 4 * (i * kStep + token)));
    return largest;
}

// One warp: the 32 columns of one token, a lane each.
// E4M3: the scale is folded into the head weight.
__device__ void store_query(const Params& params, float value, float scale, int64_t row, int part, int lane) {
    const uint16_t bits = to_e4m3x2(value * __frcp_rn(scale), 0.0f);
    params.q_out[row * kHeadColumns + part * kRows + lane] = {static_cast<uint8_t>(bits)};
}
}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_index_front_rows8(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const Smem smem = {shared_addr(storage)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, head = blockIdx.y, first = blockIdx.z * kNumTokens;
    const int end = min(first + kNumTokens, params.num_rows);
    if (first >= end) return griddepcontrol_wait();  // the whole cluster

    // Before the wait: weights only.
    if (threadIdx.x == kComputeThreads) start_barriers(smem);
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    if (warp == kComputeWarps) {
        barrier_cluster_wait();
        insert_keys(params, first, end - first, head * kClusterSize + part, lane);
        return;
    }
    start_weights(params, smem, head, part, warp, lane);
    barrier_cluster_wait();
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();

    const int column = kWarpColumns * warp + 8 * (lane % 4);
    float* sums = reinterpret_cast<float*>(storage + kSmemSums);
    const float* partials = reinterpret_cast<const float*>(storage + kSmemPartials);
    Columns x;
    load_columns(x, params, first, end, column, lane);
    cp_async_wait_group<0>();  // the barrier of the first sums shows every thread's share to all
#pragma unroll 1
    for (int step = 0; first + step * kStep < end; ++step) {
        const int row = first + step * kStep + warp;  // that this warp finishes
        if (!kFp4 && threadIdx.x == 0) mbarrier_arrive_expect_tx(smem.amax_barrier(step), kClusterSize * kStep * 4);
        float weight = 0.0f;
        if (row < end) weight = bf16_low(ld_global_cg_2(params.projected + row * params.projected_stride + params.weight + head));
        const float rr = rrms_dsa(sum_of_squares(sums, x, warp, lane), params.eps);
        mbarrier_wait(smem.weights_barrier(), 0);
        multiply(x, rr, smem, column, warp, lane);
        load_columns(x, params, first + (step + 1) * kStep, end, column, lane);
        bar_sync<kComputeBarrier, kComputeThreads>();

        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < kComputeWarps; ++w) value += partials[(w * kStep + warp) * kPartialPitch + lane];
        value = bf16_low(to_bf16x2(value, 0.0f));
        float scale = 1.0f;
        if constexpr (!kFp4) {
            const float largest = exchange_amax(smem, max_lanes<32>(fabsf(value)), warp, part, step, lane);
            scale = fp8_scale(largest, 1e-10f);
        }
        if (row < end) {
            const int64_t place = static_cast<int64_t>(row) * kNumHeads + head;
            store_query(params, value, scale, place, part, lane);
            if (part == 0 && lane == 0)
                params.w_out[place] = {static_cast<uint16_t>(to_bf16x2((weight * scale) * 0x1p-6f, 0.0f))};
        }
    }
}
