#pragma once
// The host's twin of sync.cuh.
#include "ptx/types.cuh"

using SharedAddr = machine::Address;

inline uint8_t* dynamic_shared() { return machine::shared_memory(); }
inline SharedAddr shared_addr(const void* pointer) { return machine::shared_address(pointer); }
inline SharedAddr map_to_rank(SharedAddr addr, uint32_t rank) { return machine::map_to_rank(addr, rank); }

KGEN_OP inline void cluster_arrive() { machine::cluster_arrive(KGEN_HERE); }
KGEN_OP inline void cluster_wait() { machine::cluster_wait(KGEN_HERE); }

template <int id, int threads>
KGEN_OP void named_barrier() { machine::block_barrier(id, threads, KGEN_HERE); }

KGEN_OP inline void mbarrier_init(SharedAddr barrier, uint32_t arrivals) {
    machine::mbarrier_init(barrier, arrivals, KGEN_HERE);
}
KGEN_OP inline void mbarrier_init_fence() { machine::mbarrier_init_fence(KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive(SharedAddr barrier) { machine::mbarrier_arrive(barrier, KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive_remote(SharedAddr barrier) { machine::mbarrier_arrive(barrier, KGEN_HERE); }
KGEN_OP inline void mbarrier_arrive_expect(SharedAddr barrier, uint32_t bytes) {
    machine::mbarrier_expect(barrier, bytes, KGEN_HERE);
}
KGEN_OP inline void mbarrier_wait(SharedAddr barrier, uint32_t parity) {
    machine::mbarrier_wait(barrier, parity, KGEN_HERE);
}

KGEN_OP inline void wait_for_previous_grid() { machine::wait_for_previous_grid(KGEN_HERE); }
KGEN_OP inline void launch_next_grid() { machine::launch_next_grid(KGEN_HERE); }
