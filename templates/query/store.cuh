#pragma once
// Values of the query: rounded to BF16, then kept so or scaled to E4M3.
#include "math/convert.cuh"

// What two and eight values of the query take.
template <class Query> struct Packed;
template <> struct Packed<e4m3> { using Pair = uint16_t; using Eight = Vec8; };
template <> struct Packed<bf16> { using Pair = uint32_t; using Eight = Vec16; };

// Two values that are BF16 already.
template <class Query>
__device__ inline typename Packed<Query>::Pair scale_pair(uint32_t pair, float scale) {
    if constexpr (sizeof(Query) == 2) return pair;
    const Pair v = multiply(from_bf16x2(pair), {scale, scale});
    return to_e4m3x2(v.low, v.high);
}

template <class Query>
__device__ inline typename Packed<Query>::Pair to_query_pair(float low, float high, float scale) {
    return scale_pair<Query>(to_bf16x2(low, high), scale);
}

// Eight values that are BF16 already.
template <class Query>
__device__ inline typename Packed<Query>::Eight to_query8(const Vec16& v, float scale) {
    if constexpr (sizeof(Query) == 2) {
        return v;
    } else {
        Vec8 packed;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            packed.word[i] = to_e4m3x4(bf16_low(v.word[2 * i]) * scale, bf16_high(v.word[2 * i]) * scale,
                                       bf16_low(v.word[2 * i + 1]) * scale, bf16_high(v.word[2 * i + 1]) * scale);
        return packed;
    }
}

template <class Query>
__device__ inline void store_query_pair(Query* target, float low, float high, float scale) {
    *reinterpret_cast<typename Packed<Query>::Pair*>(target) = to_query_pair<Query>(low, high, scale);
}

template <class Query>
__device__ inline void store_query8(Query* target, const Vec16& v, float scale) {
    *reinterpret_cast<typename Packed<Query>::Eight*>(target) = to_query8<Query>(v, scale);
}

// The eight values of this thread's octet, rounded to BF16, in every lane of the octet.
__device__ inline Vec16 gather_octet(float value, int lane) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, 1);
    const uint32_t pair = lane & 1 ? to_bf16x2(other, value) : to_bf16x2(value, other);
    Vec16 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.word[i] = __shfl_sync(0xFFFFFFFFu, pair, (lane & ~7) + 2 * i);
    return v;
}

// The same of four values a lane, in both lanes of a pair.
__device__ inline Vec16 gather_octet(const float (&four)[4], int lane) {
    const uint32_t low = to_bf16x2(four[0], four[1]), high = to_bf16x2(four[2], four[3]);
    const uint32_t other_low = __shfl_xor_sync(0xFFFFFFFFu, low, 1);
    const uint32_t other_high = __shfl_xor_sync(0xFFFFFFFFu, high, 1);
    if (lane % 2) return {other_low, other_high, low, high};
    return {low, high, other_low, other_high};
}
