#pragma once
// The machine that a kernel runs on here: threads as fibers, warps, CTAs, clusters, shared memory,
// barriers, asynchronous copies. The host's twins of the device headers call it; `here` is the
// address in the kernel that reports name.
#include <cstdint>

namespace machine {

struct Index { unsigned x, y, z; };

Index thread_index();
Index block_index();
Index block_size();
Index grid_size();

using Address = uint32_t;  // shared memory: rank + 1 in the cluster, then 24 bits of offset

uint8_t* shared_memory();
Address shared_address(const void* pointer);
Address map_to_rank(Address address, uint32_t rank);

// Meetings.
void block_barrier(int id, int threads, void* here);
void warp_barrier(void* here);
void cluster_arrive(void* here);
void cluster_wait(void* here);
uint32_t shuffle(uint32_t value, int source, void* here);
void mma(float* d, const uint32_t* a, const uint32_t* b, void* here);
void load_matrix(uint32_t* out, Address row, bool transposed, void* here);

// Warpgroup MMAs, m64n48k16.
void wgmma_fence(void* here);
void wgmma_commit_group(void* here);
void wgmma_wait_group(int groups, void* here);
void wgmma_m64n48k16(float* d, const uint32_t* a, uint64_t b, void* here);
void wgmma_take(const float* d, void* here);
void fence_proxy_async(void* here);

// mbarriers.
void mbarrier_init(Address barrier, uint32_t arrivals, void* here);
void mbarrier_init_fence(void* here);
void mbarrier_arrive(Address barrier, void* here);
void mbarrier_expect(Address barrier, uint32_t bytes, void* here);
void mbarrier_wait(Address barrier, uint32_t parity, void* here);

// Programmatic launches.
void wait_for_previous_grid(void* here);
void launch_next_grid(void* here);

// Memory.
void load_shared(void* out, Address source, unsigned bytes, void* here);
void store_shared(Address target, const void* value, unsigned bytes, void* here);
void load_global(void* out, const void* source, unsigned bytes, void* here);
void check_atomic(const void* address, unsigned bytes, void* here);
void async_load(Address target, const void* source, unsigned bytes, void* here);
void async_commit();
void async_wait(int groups, void* here);
void bulk_load(Address target, const void* source, unsigned bytes, Address barrier, void* here);
void bulk_load_multicast(Address target, const void* source, unsigned bytes, Address barrier, uint32_t ctas, void* here);
void store_remote(Address target, const void* value, unsigned bytes, Address barrier, void* here);

// Mailboxes between ranks.
void store_mailbox(void* target, const void* value, unsigned bytes, bool everywhere, void* here);
void wait_for_words(void* out, const void* place, unsigned bytes, uint32_t sentinel, void* here);

}  // namespace machine
