#pragma once
// Four partial products on their way to the CTA that adds them: 16 bytes of FP32, or 8 of BF16.
#include "math/convert.cuh"
#include "ptx/copy.cuh"

template <class Piece>
__device__ inline Piece pack_piece(float a, float b, float c, float d) {
    if constexpr (sizeof(Piece) == 8) return {to_bf16x2(a, b), to_bf16x2(c, d)};
    else return {__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)};
}

// Add the piece at `place` in shared memory.
template <class Piece>
__device__ inline void add_piece(float (&sum)[4], SharedAddr place) {
    if constexpr (sizeof(Piece) == 8) {
        const Vec8 v = ld_shared_8(place);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += i % 2 ? bf16_high(v.word[i / 2]) : bf16_low(v.word[i / 2]);
    } else {
        const Vec16 v = ld_shared_16(place);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(v.word[i]);
    }
}
