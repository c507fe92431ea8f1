#pragma once
// The KV row of one token, per-tensor FP8: 512 E4M3 of the normalised latent, 64 of k_pe.
#include "copy.cuh"
#include "norm.cuh"

constexpr int kKvColumns = 512;
constexpr int kRopeColumns = 64;

// One lane's share of w_kva: columns 16 * lane ..
struct KvWeights { Vec16 half[2]; };

__device__ inline KvWeights load_kv_weights(const bf16* w_kva, int lane) {
    return {load_constant16(w_kva + 16 * lane), load_constant16(w_kva + 16 * lane + 8)};
}

__device__ inline uint32_t scale_to_e4m3x4(uint32_t first, uint32_t second, float scale) {
    return to_e4m3x4(bf16_low(first) * scale, bf16_high(first) * scale,
                     bf16_low(second) * scale, bf16_high(second) * scale);
}

// One warp: normalise `kv` [512 | 64 rope] and write `row` [576]. The sum is scaled in one FMA.
__device__ inline void insert_kv_row(const bf16* kv, uint8_t* row, const KvWeights& weights,
                                     float k_scale_inv, float eps, int lane) {
    const Vec16 x[2] = {load_fresh16(kv + 16 * lane), load_fresh16(kv + 16 * lane + 8)};
    const uint32_t rope = load_fresh4(kv + kKvColumns + 2 * lane);
    const float sum = sum_lanes<32>(add_squares(add_squares(0.0f, x[0]), x[1]));
    const float rr = rsqrt_approx_ftz(fmaf(sum, 1.0f / kKvColumns, eps));
    Vec16 packed;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Vec16 y = normalise(x[i], rr, weights.half[i]);
        packed.word[2 * i] = scale_to_e4m3x4(y.word[0], y.word[1], k_scale_inv);
        packed.word[2 * i + 1] = scale_to_e4m3x4(y.word[2], y.word[3], k_scale_inv);
    }
    *reinterpret_cast<Vec16*>(row + 16 * lane) = packed;
    *reinterpret_cast<uint16_t*>(row + kKvColumns + 2 * lane) =
        to_e4m3x2(bf16_low(rope) * k_scale_inv, bf16_high(rope) * k_scale_inv);
}
