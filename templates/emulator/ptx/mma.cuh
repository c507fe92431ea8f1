#pragma once
// The host's twin of mma.cuh.
#include "ptx/sync.cuh"

struct Acc { float c[4]; };

KGEN_OP inline void mma_m16n8k16(Acc& d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                 uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    machine::mma(d.c, a, b, KGEN_HERE);
}

KGEN_OP inline Vec16 ldmatrix_x4(SharedAddr row) {
    Vec16 v;
    machine::load_matrix(v.word, row, false, KGEN_HERE);
    return v;
}

KGEN_OP inline Vec16 ldmatrix_x4_trans(SharedAddr row) {
    Vec16 v;
    machine::load_matrix(v.word, row, true, KGEN_HERE);
    return v;
}

KGEN_OP inline uint32_t movmatrix_trans(uint32_t pair) {
    const int lane = static_cast<int>(machine::thread_index().x % 32), row = lane % 4 * 2, column = lane / 4;
    const uint32_t upper = machine::shuffle(pair, row * 4 + column / 2, KGEN_HERE);
    const uint32_t lower = machine::shuffle(pair, row * 4 + 4 + column / 2, KGEN_HERE);
    return (upper >> column % 2 * 16 & 0xFFFF) | (lower >> column % 2 * 16 & 0xFFFF) << 16;
}
