#pragma once
// RMSNorm of BF16 rows: FP32 sums, one rounding to BF16 at the end.
#include "math/convert.cuh"
#include "ptx/stage.cuh"
#include "ptx/mma.cuh"

// The sum of `value` over groups of `lanes` neighbouring lanes (a power of two), in every lane.
template <int lanes>
__device__ inline float sum_lanes(float value) {
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

// Add the squares of eight BF16 values to `sum`.
__device__ inline float add_squares(float sum, const Vec16& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum = fmaf(bf16_low(x.word[i]), bf16_low(x.word[i]), sum);
        sum = fmaf(bf16_high(x.word[i]), bf16_high(x.word[i]), sum);
    }
    return sum;
}

// bf16((x * rr) * w) of a pair.
__device__ inline uint32_t normalise(uint32_t x, float rr, uint32_t w) {
    const Pair y = multiply(multiply(from_bf16x2(x), {rr, rr}), from_bf16x2(w));
    return to_bf16x2(y.low, y.high);
}

__device__ inline Vec16 normalise(const Vec16& x, float rr, const Vec16& w) {
    Vec16 y;
#pragma unroll
    for (int i = 0; i < 4; ++i) y.word[i] = normalise(x.word[i], rr, w.word[i]);
    return y;
}

// Sums of squares by the tensor cores: a lane's eight columns of token g are both operands, its words
// 0 and 2 as rows 0..7, words 1 and 3 as rows 8..15. Only the diagonals count.
struct SquareSums { Acc even, odd; };

__device__ inline void add_token_squares(SquareSums& sums, const Vec16& x) {
    mma_m16n8k16(sums.even, x.word[0], x.word[1], x.word[2], x.word[3], x.word[0], x.word[2]);
    mma_m16n8k16(sums.odd, x.word[0], x.word[1], x.word[2], x.word[3], x.word[1], x.word[3]);
}

// Token g's sum, in the lane of its diagonal only: lane % 4 == g / 2.
__device__ inline float diagonal(const SquareSums& sums, int g) {
    return g % 2 ? sums.even.c[1] + sums.odd.c[3] : sums.even.c[0] + sums.odd.c[2];
}

// Reciprocal RMS of the 1536 q_a columns, as the stock Triton kernel forms it (dense) ..
__device__ inline float rrms_dense(float sum, float eps) { return rsqrt_approx_ftz(div_full(sum, 1536.0f) + eps); }

// .. and as the stock C++ kernel does (DSA).
__device__ inline float rrms_dsa(float sum, float eps) { return rsqrt_approx(__fdiv_rn(sum, 1536.0f) + eps); }
