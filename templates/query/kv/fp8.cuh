#pragma once
// The KV row per-tensor FP8: 512 E4M3 of the latent, 64 of k_pe, each scaled by `KvScale`, which the
// including header defines.
#include "query/kv/row.cuh"

constexpr int kKvRowBytes = 576;

__device__ inline uint32_t scale_to_e4m3x4(uint32_t first, uint32_t second, KvScale scale) {
    return to_e4m3x4(scale(bf16_low(first)), scale(bf16_high(first)), scale(bf16_low(second)),
                     scale(bf16_high(second)));
}

__device__ inline void store_kv_row(uint8_t* target, const KvRow& row, KvScale scale, int lane) {
    Vec16 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        packed.word[i] = scale_to_e4m3x4(row.half[i / 2].word[i % 2 * 2], row.half[i / 2].word[i % 2 * 2 + 1], scale);
    *reinterpret_cast<Vec16*>(target + 16 * lane) = packed;
    *reinterpret_cast<uint16_t*>(target + kKvColumns + 2 * lane) =
        to_e4m3x2(scale(bf16_low(row.rope)), scale(bf16_high(row.rope)));
}
