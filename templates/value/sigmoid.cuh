#pragma once
// The sigmoid gate of BF16 values.
#include "ptx/stage.cuh"
#include "math/convert.cuh"

// 1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow.
__device__ inline float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return __fdiv_rn(x < 0.0f ? e : 1.0f, 1.0f + e);
}

// bf16(value * sigmoid(gate)) of a pair.
__device__ inline uint32_t apply_gate(uint32_t value, uint32_t gate) {
    return to_bf16x2(bf16_low(value) * sigmoid(bf16_low(gate)), bf16_high(value) * sigmoid(bf16_high(gate)));
}
