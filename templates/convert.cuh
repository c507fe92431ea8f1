#pragma once
// Number formats: every rounding that a kernel does is a call of one of these.
#include "types.cuh"

__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Two FP32 values rounded to nearest even BF16, `low` in the low half.
__device__ inline uint32_t to_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline float round_to_bf16(float value) { return bf16_low(to_bf16x2(value, 0.0f)); }

// Two FP32 values as saturated E4M3 (NaN gives 0x7F), `low` in the low byte.
__device__ inline uint16_t to_e4m3x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline uint32_t to_e4m3x4(float a, float b, float c, float d) {
    return to_e4m3x2(a, b) | static_cast<uint32_t>(to_e4m3x2(c, d)) << 16;
}

__device__ inline float rsqrt_approx_ftz(float value) {
    float result;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

__device__ inline float div_full(float a, float b) {
    float result;
    asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
