#pragma once
// Barriers, clusters and programmatic launches.
#include "ptx/types.cuh"

using SharedAddr = uint32_t;  // an address in the shared window, this CTA's or (mapped) a peer's

// The CTA's dynamic shared memory.
__device__ inline uint8_t* dynamic_shared() {
    extern __shared__ __align__(1024) uint8_t storage[];
    return storage;
}

__device__ inline SharedAddr shared_addr(const void* pointer) {
    return static_cast<SharedAddr>(__cvta_generic_to_shared(pointer));
}

// The address in CTA `rank` of the cluster that `addr` has in this one.
__device__ inline SharedAddr mapa(SharedAddr addr, uint32_t rank) {
    SharedAddr mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(addr), "r"(rank));
    return mapped;
}

// NOTE: relaxed, since all it has to order is mbarrier_init_fence; a release waits for every
// global access on its way.
__device__ inline void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void barrier_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Block barrier `id` among `threads` threads.
template <int id, int threads>
__device__ inline void bar_sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

// The same where the barrier depends on the warp.
template <int threads>
__device__ inline void bar_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

__device__ inline void mbarrier_init(SharedAddr barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Make initialised mbarriers visible to the cluster and to asynchronous copies.
__device__ inline void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(SharedAddr barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive on a peer's barrier, ordering nothing but what this thread has consumed.
// NOTE: a release at cluster scope waits for every global access on its way.
__device__ inline void mbarrier_arrive_relaxed_cluster(SharedAddr barrier) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive on a peer's barrier; what this thread has read and written comes before.
__device__ inline void mbarrier_arrive_release_cluster(SharedAddr barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(SharedAddr barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(barrier), "r"(bytes) : "memory");
}

// Whether the phase of `parity` has completed; waits for a while that the hardware chooses.
__device__ inline bool mbarrier_try_wait_parity(SharedAddr barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

// Wait for the phase of `parity` to complete and acquire what its arrivals and transactions brought.
__device__ inline void mbarrier_wait(SharedAddr barrier, uint32_t parity) {
    while (!mbarrier_try_wait_parity(barrier, parity)) {}
}

// What this thread knows to be in shared memory is there for the asynchronous proxy too (wgmma, bulk copies).
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same where threads of other CTAs arrive, whose reads and writes this thread acquires.
__device__ inline void mbarrier_wait_acquire_cluster(SharedAddr barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    }
}

// A mark for profilers.
// NOTE: ptxas moves no arithmetic across it, which it does across every barrier and wait.
__device__ inline void pmevent() { asm volatile("pmevent 0;" ::: "memory"); }

// Wait until the grids before this one in the chain are complete and their writes visible.
__device__ inline void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Let the next grid of the chain start its prologue.
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
