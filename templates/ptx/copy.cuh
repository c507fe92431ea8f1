#pragma once
// Loads, stores and asynchronous copies.
#include "ptx/sync.cuh"

// 16 bytes of global memory that may have been written by an earlier grid: L2, never a stale L1.
__device__ inline Vec16 ld_global_cg_16(const void* source) {
    Vec16 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(source) : "memory");
    return v;
}

__device__ inline Vec8 ld_global_cg_8(const void* source) {
    Vec8 v;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(source) : "memory");
    return v;
}

__device__ inline uint32_t ld_global_cg_4(const void* source) {
    uint32_t v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(source) : "memory");
    return v;
}

__device__ inline uint16_t ld_global_cg_2(const void* source) {
    uint16_t v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(source) : "memory");
    return v;
}

__device__ inline int64_t ld_global_cg_s64(const void* source) {
    int64_t v;
    asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(v) : "l"(source) : "memory");
    return v;
}

// 16 bytes that nothing writes while this grid lives (weights).
__device__ inline Vec16 ld_global_nc_16(const void* source) {
    Vec16 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(source));
    return v;
}

__device__ inline Vec16 ld_shared_16(SharedAddr source) {
    Vec16 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(source) : "memory");
    return v;
}

__device__ inline void st_shared_16(SharedAddr target, const Vec16& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
}

// 16 bytes from global to this CTA's shared memory, asynchronously; committed in groups per thread.
__device__ inline void cp_async_16(SharedAddr target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `groups` of this thread's latest groups are still on their way.
template <int groups>
__device__ inline void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Bulk copy of `bytes` (a multiple of 16) from global to this CTA's shared memory, counted on `barrier`.
__device__ inline void cp_async_bulk(SharedAddr target, const void* source, uint32_t bytes, SharedAddr barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// The same to this place in every CTA of the cluster whose bit is in `ranks`, each counted on its own barrier.
__device__ inline void cp_async_bulk_multicast(SharedAddr target, const void* source, uint32_t bytes,
                                               SharedAddr barrier, uint16_t ranks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        ::"r"(target), "l"(source), "r"(bytes), "r"(barrier), "h"(ranks) : "memory");
}

// Stores from registers into a peer's shared memory, counted on the peer's `barrier`.
__device__ inline void st_async(SharedAddr target, float v, SharedAddr barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(target), "f"(v), "r"(barrier) : "memory");
}

__device__ inline void st_async(SharedAddr target, float a, float b, SharedAddr barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(target), "f"(a), "f"(b), "r"(barrier) : "memory");
}

__device__ inline void st_async(SharedAddr target, const Vec8& v, SharedAddr barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
                 ::"r"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(barrier) : "memory");
}

__device__ inline void st_async(SharedAddr target, const Vec16& v, SharedAddr barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]),
                   "r"(barrier) : "memory");
}

__device__ inline float ld_shared_f32(SharedAddr source) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(source) : "memory");
    return v;
}

__device__ inline Vec8 ld_shared_8(SharedAddr source) {
    Vec8 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "r"(source) : "memory");
    return v;
}

__device__ inline void st_shared_8(SharedAddr target, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(target), "f"(a), "f"(b) : "memory");
}
