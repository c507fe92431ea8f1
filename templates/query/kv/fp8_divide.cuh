#pragma once
// Per-tensor FP8 KV rows, divided by the scale in one IEEE division (DSA).

struct KvScale {
    float k_scale;
    __device__ float operator()(float value) const { return __fdiv_rn(value, k_scale); }
};

#include "query/kv/fp8.cuh"
