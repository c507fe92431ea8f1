// value_tiles16: MLA value projection (W_UV) and sigmoid gate of the attention latent.
//
// A CTA owns 32 outputs of a head for 16 token rows; each of its four warps multiplies a quarter of the
// 512 latent columns, with its share of W_UV in registers before the wait.
#include "value/sigmoid.cuh"
#include "ptx/mma.cuh"
#include "release.cuh"

constexpr int kNumTokens = 16;  // token rows of a CTA's tile
constexpr int kClusterSize = 1;
constexpr int kNumThreads = 128;
constexpr int kCtasPerSm = 2;
constexpr int kTokensPerRequest = 1;
constexpr Release kRelease = Release::wait;
constexpr int kSmemWeights = 0;
constexpr int kSmemPartials = 34816;
constexpr int kSmemBarrier = 43008;

constexpr int kLatentColumns = 512;
constexpr int kValueColumns = 128;  // outputs of a head
constexpr int kOutputs = 32;        // of these, a CTA's
constexpr int kWarps = kNumThreads / 32;
constexpr int kWarpColumns = kLatentColumns / kWarps;
constexpr int kBlocks = kWarpColumns / 32;  // a lane's 16-byte pieces of a row
constexpr int kTiles = kOutputs / 8;
constexpr int kWeightPitch = 2 * kLatentColumns + 64;  // bytes; 68 * 16: rows g, g+1 use other banks

static_assert(kNumTokens == 16 && kClusterSize == 1, "tokens are the M side of one MMA");
static_assert(kNumTokens * kOutputs == 4 * kNumThreads, "a thread finishes four outputs");

struct Params {
    const bf16* latent;  // [num_rows, heads, 512]
    const bf16* w_uv;  // [heads, 128, 512]
    const bf16* gate;  // [num_rows, heads * 128]
    const int32_t* lengths;  // [num_rows]
    bf16* out;  // [num_rows, heads * 128]
    int64_t latent_stride;  // elements, latent
    int64_t w_uv_stride;  // elements, w_uv
    int64_t gate_stride;  // elements, gate
    int64_t out_stride;  // elements, out
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 80, "the host packs 80 bytes");

extern "C" __global__ __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_value_tiles16(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    const SharedAddr weights = shared_addr(storage) + kSmemWeights, partials = shared_addr(storage) + kSmemPartials;
    const SharedAddr barrier = shared_addr(storage) + kSmemBarrier;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, first = blockIdx.z * kNumTokens, first_output = blockIdx.x * kOutputs;
    const int column = kWarpColumns * warp + 8 * (lane % 4);

    // Before the wait: the CTA's rows of W_UV in bulk; then rows g, g+8 .., columns 8t.. of every 32.
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(barrier, kOutputs * 2 * kLatentColumns);
    }
    __syncthreads();
    if (lane == 0) {
        const bf16* w_uv = params.w_uv + head * params.w_uv_stride + first_output * kLatentColumns;
        for (int row = warp; row < kOutputs; row += kWarps)
            cp_async_bulk(weights + row * kWeightPitch, w_uv + row * kLatentColumns, 2 * kLatentColumns, barrier);
    }
    mbarrier_wait(barrier, 0);
    Vec16 w[kTiles][kBlocks];
#pragma unroll
    for (int i = 0; i < kTiles * kBlocks; ++i)
        w[i / kBlocks][i % kBlocks] = ld_shared_16(
            weights + (lane / 4 + i / kBlocks * 8) * kWeightPitch + 2 * (column + i % kBlocks * 32));
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();

    // A thread finishes four outputs of one row: its gate and length come with the latent.
    const int row = first + threadIdx.x / 8, output = head * kValueColumns + first_output + threadIdx.x % 8 * 4;
    const bool valid = row < params.num_rows;
    Vec8 gate = {};
    bool empty = true;
    if (valid) {
        gate = ld_global_cg_8(params.gate + row * params.gate_stride + output);
        empty = static_cast<int32_t>(ld_global_cg_4(params.lengths + row / kTokensPerRequest)) <= 0;
    }
    Vec16 x[2][kBlocks] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int token = first + lane / 4 + 8 * half;
        if (token >= params.num_rows) continue;
        const bf16* latent = params.latent + token * params.latent_stride + head * kLatentColumns + column;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) x[half][j] = ld_global_cg_16(latent + 32 * j);
    }

    // Split the latent over the warps, then add the four partial products.
    Acc acc[kTiles] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            mma_m16n8k16(acc[n], x[0][j].word[0], x[1][j].word[0], x[0][j].word[1], x[1][j].word[1],
                         w[n][j].word[0], w[n][j].word[1]);
            mma_m16n8k16(acc[n], x[0][j].word[2], x[1][j].word[2], x[0][j].word[3], x[1][j].word[3],
                         w[n][j].word[2], w[n][j].word[3]);
        }
    }
    const SharedAddr mine = partials + 4 * ((warp * kNumTokens + lane / 4) * kOutputs + 2 * (lane % 4));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
        st_shared_8(mine + 32 * n, acc[n].c[0], acc[n].c[1]);
        st_shared_8(mine + 32 * n + 4 * 8 * kOutputs, acc[n].c[2], acc[n].c[3]);
    }
    __syncthreads();
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        const Vec16 v = ld_shared_16(partials + 4 * w * kNumTokens * kOutputs + 16 * threadIdx.x);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(v.word[i]);
    }
    if (!valid) return;
    Vec8 out = {};
    if (!empty) out = {apply_gate(to_bf16x2(sum[0], sum[1]), gate.word[0]),
                       apply_gate(to_bf16x2(sum[2], sum[3]), gate.word[1])};
    *reinterpret_cast<Vec8*>(params.out + row * params.out_stride + output) = out;
}
