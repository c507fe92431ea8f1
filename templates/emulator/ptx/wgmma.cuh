#pragma once
// The host's twin of wgmma.cuh.
#include "ptx/mma.cuh"

inline uint64_t wgmma_descriptor(SharedAddr rows) {
    constexpr uint64_t kEightRows = 1024 / 16, kSwizzle128 = 1;
    return (rows & 0x3FFFF) >> 4 | 1ull << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

KGEN_OP inline void wgmma_fence() { machine::wgmma_fence(KGEN_HERE); }
KGEN_OP inline void wgmma_commit_group() { machine::wgmma_commit_group(KGEN_HERE); }
template <int groups>
KGEN_OP void wgmma_wait_group() {
    machine::wgmma_wait_group(groups, KGEN_HERE);
}

struct Acc48 { float c[24]; };

KGEN_OP inline void wgmma_m64n48k16(Acc48& d, const Vec16& a, uint64_t b) {
    machine::wgmma_m64n48k16(d.c, a.word, b, KGEN_HERE);
}

KGEN_OP inline void wgmma_take(Acc48& d) { machine::wgmma_take(d.c, KGEN_HERE); }
