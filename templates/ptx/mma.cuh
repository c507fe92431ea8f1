#pragma once
// Tensor-core fragments: mma.sync m16n8k16, BF16 in, FP32 accumulation.
//   A (16 x 16): a0 (row g, k 2t..)  a1 (row g+8, k 2t..)  a2 (row g, k 2t+8..)  a3 (row g+8, k 2t+8..)
//   B (16 x 8):  b0 (k 2t.., column g)  b1 (k 2t+8.., column g)
//   C (16 x 8):  c0, c1 (row g, columns 2t, 2t+1)  c2, c3 (row g+8)
// with g = lane / 4 and t = lane % 4.
#include "ptx/sync.cuh"

struct Acc { float c[4]; };

__device__ inline void mma_m16n8k16(Acc& d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};"
        : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8.
__device__ inline Vec16 ldmatrix_x4(SharedAddr row) {
    Vec16 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(row) : "memory");
    return v;
}

__device__ inline Vec16 ldmatrix_x4_trans(SharedAddr row) {
    Vec16 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(row) : "memory");
    return v;
}

// The 8 x 8 matrix whose row g, columns 2t and 2t + 1 are in each lane, transposed.
__device__ inline uint32_t movmatrix_trans(uint32_t pair) {
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}
