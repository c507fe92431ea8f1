#pragma once
// What every layout of the KV row starts with: one token's 512 kv_a columns, normalised by one warp, and
// its 64 k_pe columns.
#include "ptx/stage.cuh"
#include "math/norm.cuh"

constexpr int kKvColumns = 512;

// One lane's share of w_kva: columns 16 * lane ..
struct KvWeights { Vec16 half[2]; };

__device__ inline KvWeights load_kv_weights(const bf16* w_kva, int lane) {
    return {ld_global_nc_16(w_kva + 16 * lane), ld_global_nc_16(w_kva + 16 * lane + 8)};
}

// One lane's share of a row: latent columns 16 * lane .., two columns of k_pe.
struct KvRow {
    Vec16 half[2];
    uint32_t rope;
};

// The columns as they come, BF16.
__device__ inline KvRow load_kv_row(const bf16* kv, int lane) {
    return {{ld_global_cg_16(kv + 16 * lane), ld_global_cg_16(kv + 16 * lane + 8)},
            ld_global_cg_4(kv + kKvColumns + 2 * lane)};
}

// RMSNorm of the latent; the sum is scaled and eps added in one FMA.
__device__ inline void normalise(KvRow& row, const KvWeights& weights, float eps) {
    const float sum = sum_lanes<32>(add_squares(add_squares(0.0f, row.half[0]), row.half[1]));
    const float rr = rsqrt_approx_ftz(fmaf(sum, 1.0f / kKvColumns, eps));
    for (int i = 0; i < 2; ++i) row.half[i] = normalise(row.half[i], rr, weights.half[i]);
}

// The largest magnitude among a lane's 16 latent values.
__device__ inline float amax(const KvRow& row) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint32_t pair = row.half[i / 4].word[i % 4];
        largest = fmaxf(largest, fmaxf(fabsf(bf16_low(pair)), fabsf(bf16_high(pair))));
    }
    return largest;
}
