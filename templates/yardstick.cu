// The yardstick of timings: the shortest dependent path of a step, with no weights. 64 CTAs in
// clusters of 8: wait, load a row, sum over the block, exchange over the cluster, sum again, store.
#include "math/norm.cuh"

constexpr int kClusterSize = 8;
constexpr int kNumThreads = 256;
constexpr int kWarps = kNumThreads / 32;
constexpr int kColumns = 1536;

struct Params {
    const bf16* x;  // [num_rows, 1536]
    float* out;     // [num_rows, 8]
    int32_t num_rows;
};
static_assert(sizeof(Params) == 24, "the host packs 24 bytes");

namespace {

// The sum over the block, in every thread.
__device__ float sum_over_block(float* sums, float value, int warp, int lane) {
    value = sum_lanes<32>(value);
    if (lane == 0) sums[warp] = value;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[w];
    return total;
}

}  // namespace

extern "C" __global__ __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, 2)
void kgen_yardstick(const __grid_constant__ Params params) {
    __shared__ __align__(16) float first_sums[kWarps], second_sums[kWarps], received[kClusterSize];
    __shared__ uint64_t barrier_storage;
    const SharedAddr barrier = shared_addr(&barrier_storage);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = blockIdx.x, row = blockIdx.y;
    const bool loads = threadIdx.x < kColumns / 8;

    // Before the wait: the barrier, seen by the cluster.
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(barrier, kClusterSize * 4);
    }
    __syncthreads();
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();

    // Load x and sum it.
    const Vec16 x = loads ? ld_global_cg_16(params.x + row * kColumns + 8 * threadIdx.x) : Vec16{};
    const float mine = add_squares(0.0f, x);
    const float sum = sum_over_block(first_sums, mine, warp, lane);

    // Exchange: this CTA's sum to all eight.
    if (threadIdx.x < kClusterSize)
        st_async(mapa(shared_addr(received + part), lane), sum, mapa(barrier, lane));
    mbarrier_wait(barrier, 0);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kClusterSize; ++i) total += received[i];

    // Sum again and store.
    const float result = sum_over_block(second_sums, mine * total, warp, lane);
    if (threadIdx.x == 0) params.out[row * kClusterSize + part] = result;
}
