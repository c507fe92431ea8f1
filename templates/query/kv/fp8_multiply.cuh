#pragma once
// Per-tensor FP8 KV rows, multiplied by the inverse scale (dense).

struct KvScale {
    float k_scale_inv;
    __device__ float operator()(float value) const { return value * k_scale_inv; }
};

#include "query/kv/fp8.cuh"
