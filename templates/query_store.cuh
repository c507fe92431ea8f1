#pragma once
// Values of the query: rounded to BF16, then stored so or scaled to E4M3.
#include "convert.cuh"

__device__ inline void store_query_pair(e4m3* target, float low, float high, float scale) {
    const Pair v = multiply(from_bf16x2(to_bf16x2(low, high)), {scale, scale});
    *reinterpret_cast<uint16_t*>(target) = to_e4m3x2(v.low, v.high);
}

__device__ inline void store_query_pair(bf16* target, float low, float high, float) {
    *reinterpret_cast<uint32_t*>(target) = to_bf16x2(low, high);
}

// Eight values that are BF16 already.
__device__ inline void store_query8(e4m3* target, const Vec16& v, float scale) {
    Vec8 packed;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        packed.word[i] = to_e4m3x4(bf16_low(v.word[2 * i]) * scale, bf16_high(v.word[2 * i]) * scale,
                                   bf16_low(v.word[2 * i + 1]) * scale, bf16_high(v.word[2 * i + 1]) * scale);
    *reinterpret_cast<Vec8*>(target) = packed;
}

__device__ inline void store_query8(bf16* target, const Vec16& v, float) {
    *reinterpret_cast<Vec16*>(target) = v;
}
