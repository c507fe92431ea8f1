#pragma once
// Number formats: every rounding that a kernel does is a call here or in numeric.cuh.
#include "ptx/numeric.cuh"

__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ inline uint32_t to_e4m3x4(float a, float b, float c, float d) {
    return to_e4m3x2(a, b) | static_cast<uint32_t>(to_e4m3x2(c, d)) << 16;
}

// The E2M1 code of a value: to nearest even, saturated at +-6; NaN gives +6. A tie goes to the
// neighbour whose code is even, hence >= below odd codes' upper bounds and > below the others'.
__device__ inline uint32_t to_e2m1_plain(float value) {
    const float a = fminf(fabsf(value), 6.0f);  // fminf(NaN, 6) is 6
    const uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return value != value ? 7 : code | (__float_as_uint(value) >> 31) << 3;
}

// Two FP32 values as E2M1, `low` in the low nibble.
__device__ inline uint32_t to_e2m1x2(float low, float high) {
    if constexpr (kHasE2m1) return to_e2m1x2_instruction(low, high);
    return to_e2m1_plain(low) | to_e2m1_plain(high) << 4;
}

__device__ inline uint32_t to_e2m1x8(const float (&v)[8]) {
    return to_e2m1x2(v[0], v[1]) | to_e2m1x2(v[2], v[3]) << 8 | to_e2m1x2(v[4], v[5]) << 16 |
           to_e2m1x2(v[6], v[7]) << 24;
}

// The power of two at or above a positive normal `value`, on its bits.
__device__ inline float pow2_at_or_above(float value) {
    return __uint_as_float((__float_as_uint(value) + 0x7FFFFFu) & 0x7F800000u);
}

// Two FP32 products, each rounded once.
__device__ inline Pair multiply(Pair a, Pair b) {
    if constexpr (kHasF32x2) return multiply_instruction(a, b);
    return {a.low * b.low, a.high * b.high};
}

__device__ inline Pair from_bf16x2(uint32_t pair) { return {bf16_low(pair), bf16_high(pair)}; }
