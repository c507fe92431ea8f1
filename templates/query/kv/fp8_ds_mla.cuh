#pragma once
// The KV row `fp8_ds_mla`, 656 bytes: 512 E4M3 of the latent, four FP32 scales (powers of two, one per
// 128 columns), k_pe as 64 BF16.
#include "query/kv/row.cuh"

constexpr int kKvRowBytes = 656;

struct KvScale {};

__device__ inline void store_kv_row(uint8_t* target, const KvRow& row, KvScale, int lane) {
    float largest = amax(row);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    const float scale = pow2_at_or_above(fmaxf(__fdiv_rn(largest, 448.0f), 1e-4f));
    const float inverse = __frcp_rn(scale);
    Vec16 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t first = row.half[i / 2].word[i % 2 * 2], second = row.half[i / 2].word[i % 2 * 2 + 1];
        packed.word[i] = to_e4m3x4(bf16_low(first) * inverse, bf16_high(first) * inverse,
                                   bf16_low(second) * inverse, bf16_high(second) * inverse);
    }
    *reinterpret_cast<Vec16*>(target + 16 * lane) = packed;
    if (lane % 8 == 0) *reinterpret_cast<float*>(target + 512 + lane / 8 * 4) = scale;
    *reinterpret_cast<uint32_t*>(target + 528 + 4 * lane) = row.rope;
}
