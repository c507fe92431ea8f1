// gate_tiles16: the sigmoid gate of W_UV's outputs, which a batched GEMM left head by head.
#include "value/sigmoid.cuh"
#include "release.cuh"

constexpr int kNumTokens = 16;  // token rows of a CTA's tile
constexpr int kClusterSize = 1;
constexpr int kNumThreads = 256;
constexpr int kCtasPerSm = 2;
constexpr int kTokensPerRequest = 1;
constexpr Release kRelease = Release::wait;

constexpr int kValueColumns = 128;
constexpr int kPieces = kValueColumns / 8;  // threads of a row

static_assert(kNumTokens * kPieces == kNumThreads && kClusterSize == 1, "a thread finishes eight outputs");

struct Params {
    const bf16* values;  // [heads, num_rows, 128]
    const bf16* gate;  // [num_rows, heads * 128]
    const int32_t* lengths;  // [num_rows]
    bf16* out;  // [num_rows, heads * 128]
    int64_t values_stride;  // elements, values
    int64_t gate_stride;  // elements, gate
    int64_t out_stride;  // elements, out
    int32_t num_rows;  // token rows
};
static_assert(sizeof(Params) == 64, "the host packs 64 bytes");

extern "C" __global__ __launch_bounds__(kNumThreads, kCtasPerSm)
void kgen_gate_tiles16(const __grid_constant__ Params params) {
    if constexpr (kRelease == Release::start) griddepcontrol_launch_dependents();
    const int head = blockIdx.y, row = blockIdx.z * kNumTokens + threadIdx.x / kPieces;
    const int piece = threadIdx.x % kPieces * 8, output = head * kValueColumns + piece;
    griddepcontrol_wait();
    if constexpr (kRelease == Release::wait) griddepcontrol_launch_dependents();
    if (row >= params.num_rows) return;

    const Vec16 value = ld_global_cg_16(params.values + head * params.values_stride + row * kValueColumns + piece);
    const Vec16 gate = ld_global_cg_16(params.gate + row * params.gate_stride + output);
    const bool empty = static_cast<int32_t>(ld_global_cg_4(params.lengths + row / kTokensPerRequest)) <= 0;
    Vec16 out = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) out.word[i] = empty ? 0 : apply_gate(value.word[i], gate.word[i]);
    store_global16(params.out + row * params.out_stride + output, out);
}
