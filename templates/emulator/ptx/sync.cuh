#pragma once
// The host's twin of sync.cuh.
#include "ptx/types.cuh"

using SharedAddr = machine::Address;

inline uint8_t* dynamic_shared() { return machine::shared_memory(); }
inline SharedAddr shared_addr(const void* pointer) { return machine::shared_address(pointer); }
inline SharedAddr mapa(SharedAddr addr, uint32_t rank) { return machine::map_to_rank(addr, rank); }

KGEN_OP inline void barrier_cluster_arrive_relaxed() { machine::cluster_arrive(KGEN_HERE); }
KGEN_OP inline void barrier_cluster_wait() { machine::cluster_wait(KGEN_HERE); }

template <int id, int threads>
KGEN_OP void bar_sync() { machine::block_barrier(id, threads, KGEN_HERE); }

template <int threads>
KGEN_OP void bar_sync(int id) {
    machine::block_barrier(id, threads, KGEN_HERE);
}

KGEN_OP inline void mbarrier_init(SharedAddr barrier, uint32_t arrivals) {
    machine::mbarrier_init(barrier, arrivals, KGEN_HERE);
}
KGEN_OP inline void fence_mbarrier_init() { machine::mbarrier_init_fence(KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive(SharedAddr barrier) { machine::mbarrier_arrive(barrier, KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive_relaxed_cluster(SharedAddr barrier) { machine::mbarrier_arrive(barrier, KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive_release_cluster(SharedAddr barrier) {
    machine::mbarrier_arrive(barrier, KGEN_HERE);
}
KGEN_OP inline void mbarrier_arrive_expect_tx(SharedAddr barrier, uint32_t bytes) {
    machine::mbarrier_expect(barrier, bytes, KGEN_HERE);
}
KGEN_OP inline void mbarrier_wait(SharedAddr barrier, uint32_t parity) {
    machine::mbarrier_wait(barrier, parity, KGEN_HERE);
}
KGEN_OP inline void mbarrier_wait_acquire_cluster(SharedAddr barrier, uint32_t parity) {
    machine::mbarrier_wait(barrier, parity, KGEN_HERE);
}
inline void pmevent() {}

KGEN_OP inline void fence_proxy_async() { machine::fence_proxy_async(KGEN_HERE); }

KGEN_OP inline void griddepcontrol_wait() { machine::wait_for_previous_grid(KGEN_HERE); }
KGEN_OP inline void griddepcontrol_launch_dependents() { machine::launch_next_grid(KGEN_HERE); }
