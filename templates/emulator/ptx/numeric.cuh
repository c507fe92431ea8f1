#pragma once
// The host's twin of numeric.cuh: the conversions bit for bit; the approximate ones exact to FP32.
#include "ptx/types.cuh"

constexpr bool kHasE2m1 = false, kHasF32x2 = false;

struct Pair { float low, high; };

inline uint16_t to_bf16(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline uint32_t to_bf16x2(float low, float high) { return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16; }

inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    return to_bf16x2(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                     __uint_as_float(a & 0xFFFF0000u) * __uint_as_float(b & 0xFFFF0000u));
}

inline uint8_t to_e4m3(float value) {
    if (value != value) return 0x7F;
    const uint8_t sign = __float_as_uint(value) >> 31 << 7;
    const float magnitude = std::fmin(std::fabs(value), 448.0f);
    if (magnitude < 0x1p-6f) return sign | static_cast<uint8_t>(std::nearbyintf(magnitude * 0x1p9f));
    const uint32_t bits = __float_as_uint(magnitude);
    const uint32_t rounded = bits + 0x7FFFFu + (bits >> 20 & 1);  // three bits of mantissa stay
    return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

inline uint16_t to_e4m3x2(float low, float high) {
    return static_cast<uint16_t>(to_e4m3(low) | to_e4m3(high) << 8);
}

inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float magnitude = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(float(mantissa), -9);
    if ((bits & 0x7F) == 0x7F) magnitude = __uint_as_float(0x7FC00000u);
    return bits & 0x80 ? -magnitude : magnitude;
}

inline float rsqrt_approx(float value) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(value))); }
inline float rsqrt_approx_ftz(float value) { return rsqrt_approx(std::fabs(value) < 0x1p-126f ? 0.0f : value); }
inline float div_full(float a, float b) { return a / b; }

uint32_t to_e2m1x2_instruction(float low, float high);  // not on this target
Pair multiply_instruction(Pair a, Pair b);              // not on this target
