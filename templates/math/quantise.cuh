#pragma once
// Block scales: powers of two chosen by the largest magnitude.
#include "math/convert.cuh"

// The largest of `value`, none negative, over groups of `lanes` neighbouring lanes, in every lane.
template <int lanes>
__device__ inline float max_lanes(float value) {
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    return value;
}

// The power of two at or above max(amax, floor) / 448, for E4M3.
__device__ inline float fp8_scale(float amax, float floor) {
    return pow2_at_or_above(__fdiv_rn(fmaxf(amax, floor), 448.0f));
}

// The MXFP4 exponent of a block: ceil(log2(max(amax, 6 * 2^-126) / 6)) in [-127, 127].
__device__ inline int mxfp4_exponent(float amax) {
    const float ratio = fmaxf(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f);
    const int exponent = static_cast<int>((__float_as_uint(ratio) + 0x7FFFFFu) >> 23) - 127;
    return min(max(exponent, -127), 127);
}

// 2^exponent for exponents in [-127, 127]; the lowest is subnormal.
__device__ inline float pow2(int exponent) {
    return __uint_as_float(exponent < -126 ? 0x400000u : static_cast<uint32_t>(exponent + 127) << 23);
}

__device__ inline float amax4(const float (&y)[4]) {
    return fmaxf(fmaxf(fabsf(y[0]), fabsf(y[1])), fmaxf(fabsf(y[2]), fabsf(y[3])));
}

// Four scaled values as E2M1, the first in the lowest nibble.
__device__ inline uint16_t to_e2m1x4(const float (&y)[4], float inverse) {
    return to_e2m1x2(y[0] * inverse, y[1] * inverse) | to_e2m1x2(y[2] * inverse, y[3] * inverse) << 8;
}
