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

// Two FP32 values as saturated E4M3 (NaN gives 0x7F), `low` in the low byte.
__device__ inline uint16_t to_e4m3x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline uint32_t to_e4m3x4(float a, float b, float c, float d) {
    return to_e4m3x2(a, b) | static_cast<uint32_t>(to_e4m3x2(c, d)) << 16;
}

__device__ inline float from_e4m3(uint8_t bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
    float value;
    asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(halves));
    return value;
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
#if __CUDA_ARCH__ >= 1000
    uint32_t pair;
    asm("{ .reg .b8 byte;\n cvt.rn.satfinite.e2m1x2.f32 byte, %1, %2;\n cvt.u32.u8 %0, byte; }"
        : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return to_e2m1_plain(low) | to_e2m1_plain(high) << 4;
#endif
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
struct Pair { float low, high; };

__device__ inline Pair multiply(Pair a, Pair b) {
#if __CUDA_ARCH__ >= 1000
    Pair product;
    asm("{ .reg .b64 a, b, c;\n mov.b64 a, {%2, %3};\n mov.b64 b, {%4, %5};\n"
        "mul.rn.f32x2 c, a, b;\n mov.b64 {%0, %1}, c; }"
        : "=f"(product.low), "=f"(product.high) : "f"(a.low), "f"(a.high), "f"(b.low), "f"(b.high));
    return product;
#else
    return {a.low * b.low, a.high * b.high};
#endif
}

__device__ inline Pair from_bf16x2(uint32_t pair) { return {bf16_low(pair), bf16_high(pair)}; }

__device__ inline float rsqrt_approx(float value) {
    float result;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
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
