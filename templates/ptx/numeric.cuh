#pragma once
// Conversions and approximate arithmetic: one instruction each.
#include "ptx/types.cuh"

// Blackwell converts to E2M1 and multiplies pairs of FP32 values in one instruction.
#if __CUDA_ARCH__ >= 1000
constexpr bool kHasE2m1 = true, kHasF32x2 = true;
#else
constexpr bool kHasE2m1 = false, kHasF32x2 = false;
#endif

struct Pair { float low, high; };

// Two FP32 values rounded to nearest even BF16, `low` in the low half.
__device__ inline uint32_t to_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two BF16 products, each rounded once to nearest even.
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}

// Two FP32 values as saturated E4M3 (NaN gives 0x7F), `low` in the low byte.
__device__ inline uint16_t to_e4m3x2(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline float from_e4m3(uint8_t bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
    float value;
    asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(halves));
    return value;
}

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

#if __CUDA_ARCH__ >= 1000
__device__ inline uint32_t to_e2m1x2_instruction(float low, float high) {
    uint32_t pair;
    asm("{ .reg .b8 byte;\n cvt.rn.satfinite.e2m1x2.f32 byte, %1, %2;\n cvt.u32.u8 %0, byte; }"
        : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline Pair multiply_instruction(Pair a, Pair b) {
    Pair product;
    asm("{ .reg .b64 a, b, c;\n mov.b64 a, {%2, %3};\n mov.b64 b, {%4, %5};\n"
        "mul.rn.f32x2 c, a, b;\n mov.b64 {%0, %1}, c; }"
        : "=f"(product.low), "=f"(product.high) : "f"(a.low), "f"(a.high), "f"(b.low), "f"(b.high));
    return product;
}
#else
__device__ uint32_t to_e2m1x2_instruction(float low, float high);  // not on this target
__device__ Pair multiply_instruction(Pair a, Pair b);              // not on this target
#endif
