#pragma once
// The indexer key of one token by one warp, four columns a lane: LayerNorm in FP32, rounded once to BF16,
// then quantised into a cache page of 64 tokens: their keys first, then their scales.
#include "ptx/stage.cuh"
#include "math/norm.cuh"
#include "math/quantise.cuh"

constexpr int kKeyColumns = 128;
constexpr int kPageTokens = 64;

struct KeyNorm { float weight[4], bias[4]; };

__device__ inline KeyNorm load_key_norm(const float* weight, const float* bias, int lane) {
    KeyNorm norm;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        norm.weight[i] = weight[4 * lane + i];
        norm.bias[i] = bias[4 * lane + i];
    }
    return norm;
}

// The lane's four columns, normalised and rounded to BF16.
__device__ inline void normalise_key(float (&y)[4], const Vec8& key, const KeyNorm& norm, float eps) {
    float x[4] = {bf16_low(key.word[0]), bf16_high(key.word[0]), bf16_low(key.word[1]), bf16_high(key.word[1])};
    const float mean = sum_lanes<32>((x[0] + x[1]) + (x[2] + x[3])) * (1.0f / kKeyColumns);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[i] -= mean;
        squares = fmaf(x[i], x[i], squares);
    }
    const float scale = rsqrt_approx(sum_lanes<32>(squares) * (1.0f / kKeyColumns) + eps);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t pair = to_bf16x2(fmaf(x[i] * scale, norm.weight[i], norm.bias[i]),
                                        fmaf(x[i + 1] * scale, norm.weight[i + 1], norm.bias[i + 1]));
        y[i] = bf16_low(pair);
        y[i + 1] = bf16_high(pair);
    }
}

// E4M3 with one scale: FP32, or with `mx` its exponent byte four times.
template <bool mx>
__device__ inline void store_key_fp8(uint8_t* page, int offset, const float (&y)[4], int lane) {
    const float scale = fp8_scale(max_lanes<32>(amax4(y)), 1e-4f), inverse = __frcp_rn(scale);
    *reinterpret_cast<uint32_t*>(page + offset * kKeyColumns + 4 * lane) =
        to_e4m3x4(y[0] * inverse, y[1] * inverse, y[2] * inverse, y[3] * inverse);
    uint32_t bits = __float_as_uint(scale);
    if constexpr (mx) bits = (bits >> 23) * 0x01010101u;
    if (lane == 0) *reinterpret_cast<uint32_t*>(page + kPageTokens * kKeyColumns + 4 * offset) = bits;
}

// MXFP4: a scale byte for every 32 columns, which are eight lanes'.
__device__ inline void store_key_fp4(uint8_t* page, int offset, const float (&y)[4], int lane) {
    const int exponent = mxfp4_exponent(max_lanes<8>(amax4(y)));
    *reinterpret_cast<uint16_t*>(page + offset * (kKeyColumns / 2) + 2 * lane) = to_e2m1x4(y, pow2(-exponent));
    if (lane % 8 == 0) page[kPageTokens * (kKeyColumns / 2) + 4 * offset + lane / 8] = exponent + 127;
}
