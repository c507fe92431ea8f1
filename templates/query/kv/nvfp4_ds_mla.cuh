#pragma once
// The KV row `nvfp4_ds_mla`, 352 bytes: 512 E2M1 of the latent, k_pe as 64 unscaled E4M3, 32 E4M3 scales
// of 16 columns each, which are one lane's; scale s lies at byte 320 + 8 * (s % 4) + s / 4.
#include "query/kv/row.cuh"

constexpr int kKvRowBytes = 352;

struct KvScale {};

__device__ inline void store_kv_row(uint8_t* target, const KvRow& row, KvScale, int lane) {
    const uint8_t scale = to_e4m3x2(fmaxf(amax(row) * (1.0f / 6.0f), 0x1p-9f), 0.0f) & 0xFF;
    const float inverse = __frcp_rn(from_e4m3(scale));
    Vec8 packed;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float v[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[2 * j] = bf16_low(row.half[i].word[j]) * inverse;
            v[2 * j + 1] = bf16_high(row.half[i].word[j]) * inverse;
        }
        packed.word[i] = to_e2m1x8(v);
    }
    *reinterpret_cast<Vec8*>(target + 8 * lane) = packed;
    *reinterpret_cast<uint16_t*>(target + 256 + 2 * lane) = to_e4m3x2(bf16_low(row.rope), bf16_high(row.rope));
    target[320 + lane % 4 * 8 + lane / 4] = scale;
}
