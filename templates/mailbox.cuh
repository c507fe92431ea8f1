#pragma once
// Mailboxes between ranks (Lamport): the data is its own flag, a word that is not the sentinel has come.
#include "types.cuh"

constexpr uint32_t kSentinel = 0xFFFFFFFFu;           // of queries and LSEs: no FP8 pair, no finite number
constexpr uint32_t kPartialSentinel = 0x80000000u;    // of BF16 rows whose zeros are all positive

// Stores that a peer's poll sees, each 32-bit word whole.
__device__ inline void system_store(uint8_t* target, uint32_t word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(target), "r"(word) : "memory");
}

__device__ inline void system_store(uint8_t* target, const Vec16& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
}

__device__ inline void system_store(uint8_t* target, const Vec8& v) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};"
                 ::"l"(target), "r"(v.word[0]), "r"(v.word[1]) : "memory");
}

// The same to a multicast address: every rank's mailbox at once.
__device__ inline void multicast_store(uint8_t* target, const Vec16& v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(target), "f"(__uint_as_float(v.word[0])), "f"(__uint_as_float(v.word[1])),
                   "f"(__uint_as_float(v.word[2])), "f"(__uint_as_float(v.word[3])) : "memory");
}

__device__ inline void multicast_store(uint8_t* target, const Vec8& v) {
    asm volatile("multimem.st.relaxed.sys.global.v2.f32 [%0], {%1, %2};"
                 ::"l"(target), "f"(__uint_as_float(v.word[0])), "f"(__uint_as_float(v.word[1])) : "memory");
}

// Wait until none of the four words at `place` is the sentinel; what has come.
template <uint32_t sentinel>
__device__ inline Vec16 wait_for_words(const uint8_t* place) {
    Vec16 v;
    do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(place) : "memory");
    } while (v.word[0] == sentinel || v.word[1] == sentinel || v.word[2] == sentinel || v.word[3] == sentinel);
    return v;
}

template <uint32_t sentinel>
__device__ inline uint32_t wait_for_word(const uint8_t* place) {
    uint32_t word;
    do {
        asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
    } while (word == sentinel);
    return word;
}
