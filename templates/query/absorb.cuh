#pragma once
// W_UK absorption: latent[token, 64 columns of this CTA] = nope[token, 128] @ w_uk[128, 64 columns].
#include "ptx/stage.cuh"
#include "math/convert.cuh"
#include "ptx/mma.cuh"

constexpr int kNopeColumns = 128;
constexpr int kNopePitch = 2 * kNopeColumns + 16;  // bytes; 17 * 16: ldmatrix without bank conflicts
constexpr int kUkColumns = 64;                     // of w_uk, this CTA's

// Where the eight columns `piece` of row `k` of w_uk lie: rows of 128 bytes, their pieces permuted so
// that eight rows of one piece fall into different banks.
__device__ inline SharedAddr uk_piece(SharedAddr staged, int k, int piece) {
    return staged + 128 * k + 16 * (piece ^ k % 8);
}

// Start copying the CTA's 64 columns of w_uk [128, 512].
template <int threads>
__device__ inline void stage_uk(SharedAddr staged, const bf16* w_uk, int part, int thread) {
#pragma unroll
    for (int i = 0; i < kNopeColumns * 8 / threads; ++i) {
        const int k = (i * threads + thread) / 8, piece = thread % 8;
        cp_async_16(uk_piece(staged, k, piece), w_uk + 512 * k + kUkColumns * part + 8 * piece);
    }
}

// The fragments of one warp's eight latent columns: every 16 bytes serve two steps of K.
struct UkFragments { Vec16 pair[4]; };

__device__ inline UkFragments load_uk_fragments(SharedAddr staged, int warp, int lane) {
    UkFragments w;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        w.pair[i] = ldmatrix_x4_trans(uk_piece(staged, 32 * i + lane, warp));
    return w;
}

// Eight tokens, in four chains: the upper half of the 16-row tile is zero.
__device__ inline Acc absorb8(SharedAddr nope, const UkFragments& w, int lane) {
    Acc acc[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Vec16 x = ldmatrix_x4(nope + (lane % 8) * kNopePitch + 64 * i + 16 * (lane / 8));
        mma_m16n8k16(acc[i % 2 * 2], x.word[0], 0, x.word[1], 0, w.pair[i].word[0], w.pair[i].word[1]);
        mma_m16n8k16(acc[i % 2 * 2 + 1], x.word[2], 0, x.word[3], 0, w.pair[i].word[2], w.pair[i].word[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[0].c[i] = (acc[0].c[i] + acc[1].c[i]) + (acc[2].c[i] + acc[3].c[i]);
    return acc[0];
}

// Sixteen tokens.
__device__ inline Acc absorb16(SharedAddr nope, const UkFragments& w, int lane) {
    Acc even = {}, odd = {};
    const SharedAddr row = nope + (lane % 16) * kNopePitch + 16 * (lane / 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Vec16 x = ldmatrix_x4(row + 64 * i), y = ldmatrix_x4(row + 64 * i + 32);
        mma_m16n8k16(even, x.word[0], x.word[1], x.word[2], x.word[3], w.pair[i].word[0], w.pair[i].word[1]);
        mma_m16n8k16(odd, y.word[0], y.word[1], y.word[2], y.word[3], w.pair[i].word[2], w.pair[i].word[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) even.c[i] += odd.c[i];
    return even;
}

// w_uk of one warp's 16 latent columns, which are the M side, so that eight tokens suffice on the N side.
struct UkColumns { Vec16 step[kNopeColumns / 16]; };

__device__ inline UkColumns load_uk_columns(SharedAddr staged, int piece, int lane) {
    UkColumns w;
#pragma unroll
    for (int k = 0; k < kNopeColumns / 16; ++k)
        w.step[k] = ldmatrix_x4_trans(uk_piece(staged, 16 * k + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2));
    return w;
}

// Eight tokens of `tokens` times a warp's 16 latent columns. Of each 16 nope columns `nope` has, token by token, four
// lanes' columns 2t, 2t + 1, 2t + 8, 2t + 9; of token g's latent columns a lane gets these as well, BF16.
template <int tokens>
__device__ inline void absorb_columns(uint32_t (&latent)[2], SharedAddr nope, const UkColumns& w_uk, int lane) {
    Acc even = {}, odd = {};
#pragma unroll
    for (int k = 0; k < kNopeColumns / 16; ++k) {
        const Vec8 x = ld_shared_8(nope + 32 * (k * tokens + lane / 4) + 8 * (lane % 4));
        const Vec16& w = w_uk.step[k];
        mma_m16n8k16(k % 2 ? odd : even, w.word[0], w.word[1], w.word[2], w.word[3], x.word[0], x.word[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
        latent[i] = movmatrix_trans(to_bf16x2(even.c[2 * i] + odd.c[2 * i], even.c[2 * i + 1] + odd.c[2 * i + 1]));
}
