#pragma once
// RMSNorm of BF16 rows: FP32 sums, one rounding to BF16 at the end.
#include "convert.cuh"
#include "copy.cuh"
#include "mma.cuh"

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
    return to_bf16x2((bf16_low(x) * rr) * bf16_low(w), (bf16_high(x) * rr) * bf16_high(w));
}

__device__ inline Vec16 normalise(const Vec16& x, float rr, const Vec16& w) {
    Vec16 y;
#pragma unroll
    for (int i = 0; i < 4; ++i) y.word[i] = normalise(x.word[i], rr, w.word[i]);
    return y;
}

// The same with the weights in FP32.
struct Weights8 { float w[8]; };

__device__ inline Vec16 normalise(const Vec16& x, float rr, const Weights8& weights) {
    Vec16 y;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        y.word[i] = to_bf16x2((bf16_low(x.word[i]) * rr) * weights.w[2 * i],
                              (bf16_high(x.word[i]) * rr) * weights.w[2 * i + 1]);
    return y;
}

__device__ inline Weights8 load_weights8(SharedAddr source) {
    const Vec16 low = load_shared16(source), high = load_shared16(source + 16);
    Weights8 weights;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        weights.w[i] = __uint_as_float(low.word[i]);
        weights.w[4 + i] = __uint_as_float(high.word[i]);
    }
    return weights;
}

// Widen `columns` norm weights to FP32 in shared memory, by all `threads`.
template <int columns, int threads>
__device__ inline void stage_norm_weights(SharedAddr target, const bf16* source, int thread) {
    if (thread >= columns / 8) return;
    static_assert(columns / 8 <= threads, "16 bytes a thread");
    const Vec16 w = load_constant16(source + 8 * thread);
    Vec16 low, high;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        low.word[2 * i] = __float_as_uint(bf16_low(w.word[i]));
        low.word[2 * i + 1] = __float_as_uint(bf16_high(w.word[i]));
        high.word[2 * i] = __float_as_uint(bf16_low(w.word[2 + i]));
        high.word[2 * i + 1] = __float_as_uint(bf16_high(w.word[2 + i]));
    }
    store_shared16(target + 32 * thread, low);
    store_shared16(target + 32 * thread + 16, high);
}

// Sums of squares by the tensor cores: rows of tokens times themselves, of which the diagonal counts.
// `low` and `high` hold eight columns of tokens g and g + 8.
__device__ inline void add_token_squares(Acc& sum, const Vec16& low) {
    mma(sum, low.word[0], 0, low.word[1], 0, low.word[0], low.word[1]);
    mma(sum, low.word[2], 0, low.word[3], 0, low.word[2], low.word[3]);
}

__device__ inline void add_token_squares(Acc& low_sum, Acc& high_sum, const Vec16& low, const Vec16& high) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        mma(low_sum, low.word[i], high.word[i], low.word[i + 1], high.word[i + 1], low.word[i], low.word[i + 1]);
        mma(high_sum, low.word[i], high.word[i], low.word[i + 1], high.word[i + 1], high.word[i], high.word[i + 1]);
    }
}

// Reciprocal RMS of the 1536 q_a columns as the stock Triton kernel forms it.
__device__ inline float query_rrms(float sum, float eps) {
    return rsqrt_approx_ftz(div_full(sum, 1536.0f) + eps);
}
