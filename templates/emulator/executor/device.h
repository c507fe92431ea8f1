#pragma once
// What CUDA C++ gives a kernel without any header, for the host's compiler.
#include <bit>
#include <cmath>
#include <cstdint>

#include "machine.h"

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define threadIdx (::machine::thread_index())
#define blockIdx (::machine::block_index())
#define blockDim (::machine::block_size())
#define gridDim (::machine::grid_size())

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

#define KGEN_HERE __builtin_return_address(0)
#define KGEN_OP __attribute__((noinline, noclone))  // has a return address that names the kernel's line

KGEN_OP inline void __syncthreads() { machine::block_barrier(0, 0, KGEN_HERE); }
KGEN_OP inline void __syncwarp() { machine::warp_barrier(KGEN_HERE); }

template <class T>
KGEN_OP T __shfl_sync(uint32_t, T value, int source) {
    return std::bit_cast<T>(machine::shuffle(std::bit_cast<uint32_t>(value), source & 31, KGEN_HERE));
}

template <class T>
KGEN_OP T __shfl_xor_sync(uint32_t, T value, int mask) {
    const int source = static_cast<int>(machine::thread_index().x % 32) ^ mask;
    return std::bit_cast<T>(machine::shuffle(std::bit_cast<uint32_t>(value), source, KGEN_HERE));
}

template <class T>
KGEN_OP T __shfl_down_sync(uint32_t, T value, int delta) {
    const int lane = static_cast<int>(machine::thread_index().x % 32);
    const int source = lane + delta < 32 ? lane + delta : lane;
    return std::bit_cast<T>(machine::shuffle(std::bit_cast<uint32_t>(value), source, KGEN_HERE));
}

template <class T>
KGEN_OP __attribute__((no_sanitize("thread"))) T atomicAdd(T* place, T value) {
    machine::check_atomic(place, sizeof value, KGEN_HERE);
    const T before = *place;
    *place = before + value;
    return before;
}
