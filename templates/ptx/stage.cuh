#pragma once
// Moving whole rows.
#include "ptx/copy.cuh"

__device__ inline void store_global16(void* target, const Vec16& v) { *static_cast<Vec16*>(target) = v; }

// Rows of `row_bytes` by all `threads`: row r of the source, `stride` bytes apart, to target + r * pitch.
template <int rows, int row_bytes, int pitch, int threads>
__device__ inline void cp_async_rows(SharedAddr target, const void* source, int64_t stride, int thread) {
    constexpr int kPieces = row_bytes / 16, kTotal = rows * kPieces;
#pragma unroll
    for (int i = 0; i < (kTotal + threads - 1) / threads; ++i) {
        const unsigned piece = i * threads + thread, row = piece / kPieces, column = piece % kPieces * 16;
        if (kTotal % threads == 0 || piece < kTotal)
            cp_async_16(target + row * pitch + column, static_cast<const uint8_t*>(source) + row * stride + column);
    }
}
