#pragma once
// Q_B's rows times w_qa, as operands of products with the rows of x as they come.
#include "math/convert.cuh"
#include "ptx/mma.cuh"

// Two steps of K of a 16-row A operand, as a lane holds it: eight columns of two rows of eight.
struct Operand { Vec16 step[2]; };

__device__ inline void mma_operand(Acc& d, const Vec16& a, uint32_t b0, uint32_t b1) {
    mma_m16n8k16(d, a.word[0], a.word[1], a.word[2], a.word[3], b0, b1);
}

// Rows g and g+8, each product rounded to BF16.
__device__ inline Operand fold_two_rows(const Vec16& first, const Vec16& second, const Vec16& w_qa) {
    Operand a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        a.step[i / 2].word[i % 2 * 2] = mul_bf16x2(first.word[i], w_qa.word[i]);
        a.step[i / 2].word[i % 2 * 2 + 1] = mul_bf16x2(second.word[i], w_qa.word[i]);
    }
    return a;
}

// Row g, each product as two BF16 parts whose sum is exact: the low parts are row g+8.
__device__ inline Operand fold_in_two_parts(const Vec16& row, const Vec16& w_qa) {
    Operand a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Pair product = multiply(from_bf16x2(row.word[i]), from_bf16x2(w_qa.word[i]));
        const uint32_t high = to_bf16x2(product.low, product.high);
        a.step[i / 2].word[i % 2 * 2] = high;
        a.step[i / 2].word[i % 2 * 2 + 1] = to_bf16x2(product.low - bf16_low(high), product.high - bf16_high(high));
    }
    return a;
}
