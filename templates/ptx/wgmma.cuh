#pragma once
// Warpgroup MMA: wgmma m64n48k16, BF16 in, FP32 accumulation, A in registers and B in shared memory.
// Each of a warpgroup's four warps brings 16 rows of A, as mma.sync's fragment, and gets their 16 x 48 of D, as six of
// mma.sync's C tiles. It runs asynchronously: between its issue and the wait for its group nobody may touch a or d,
// or write the B that it reads.
#include "ptx/mma.cuh"

// Where rows of B lie: [8k rows][64 columns] BF16, rows of 128 bytes whose 16-byte piece p is at p ^ (row % 8), from an
// address that is a multiple of 1024. Columns 16k.. begin 32 * k bytes on.
__device__ inline uint64_t wgmma_descriptor(SharedAddr rows) {
    constexpr uint64_t kEightRows = 1024 / 16, kSwizzle128 = 1;
    return (rows & 0x3FFFF) >> 4 | 1ull << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

// What this thread wrote to the registers of wgmmas to come is there before they read it.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most `groups` of the latest groups are still running.
template <int groups>
__device__ inline void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

struct Acc48 { float c[24]; };

// d += a * b.
__device__ inline void wgmma_m64n48k16(Acc48& d, const Vec16& a, uint64_t b) {
    float (&c)[24] = d.c;
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12,"
        " %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b));
}

// `d` is read from here on: its groups have been waited for.
__device__ inline void wgmma_take(Acc48& d) {
#pragma unroll
    for (int i = 0; i < 24; ++i) asm volatile("" : "+f"(d.c[i])::"memory");
}
