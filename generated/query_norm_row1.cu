// query_norm_row1: the normalised q_a rows, q_c = bf16((x * rr) * w_qa), one CTA a row.
#include "math/norm.cuh"
#include "release.cuh"

constexpr int kNumTokens = 1;
constexpr int kNumThreads = 192;
constexpr int kClusterSize = 1;
constexpr int kCtasPerSm = 2;
constexpr int kSmemSums = 0;
constexpr Release kRelease = Release::wait;

constexpr int kLoraColumns = 1536;
constexpr int kWarps = kNumThreads / 32;

static_assert(kNumTokens == 1 && kClusterSize == 1, "a CTA normalises one row by itself");
static_assert(8 * kNumThreads == kLoraColumns, "16 bytes a thread");

struct Params {
    const bf16* qkv;  // [num_rows, >=2112]
    const bf16* w_qa;  // [1536]
    bf16* q_c;  // [num_rows, 1536]
    int64_t qkv_stride;  // elements, qkv
    int64_t q_c_stride;  // elements, q_c
    float eps;  // of the RMSNorms
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 48, "the host packs 48 bytes");

extern "C" __global__ __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_query_norm_row1(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    uint8_t* const storage = dynamic_shared();
    float* sums = reinterpret_cast<float*>(storage + kSmemSums);
    const int row = blockIdx.x, column = 8 * threadIdx.x;

    // Before the wait: the weight only.
    const Vec16 w_qa = ld_global_nc_16(params.w_qa + column);
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();
    if (row >= params.num_rows) return;

    const Vec16 x = ld_global_cg_16(params.qkv + row * params.qkv_stride + column);
    const float squares = sum_lanes<32>(add_squares(0.0f, x));
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w];
    const Vec16 y = normalise(x, rrms_dsa(sum, params.eps), w_qa);
    store_global16(params.q_c + row * params.q_c_stride + column, y);
}
