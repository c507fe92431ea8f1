#pragma once
// Mailboxes between ranks (Lamport): the data is its own flag, a word that is not the sentinel has come.
#include "ptx/types.cuh"

constexpr uint32_t kSentinel = 0xFFFFFFFFu;           // of queries and LSEs: no FP8 pair, no finite number
constexpr uint32_t kPartialSentinel = 0x80000000u;    // of BF16 rows whose zeros are all positive

// Stores that a peer's poll sees, each 32-bit word whole.
__device__ inline void st_relaxed_sys(uint8_t* target, uint32_t word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(target), "r"(word) : "memory");
}

__device__ inline void st_relaxed_sys(uint8_t* target, const Vec16& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
}

__device__ inline void st_relaxed_sys(uint8_t* target, const Vec8& v) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};"
                 ::"l"(target), "r"(v.word[0]), "r"(v.word[1]) : "memory");
}

// The same to a multicast address: every rank's mailbox at once.
__device__ inline void multimem_st_relaxed_sys(uint8_t* target, const Vec16& v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(target), "f"(__uint_as_float(v.word[0])), "f"(__uint_as_float(v.word[1])),
                   "f"(__uint_as_float(v.word[2])), "f"(__uint_as_float(v.word[3])) : "memory");
}

__device__ inline void multimem_st_relaxed_sys(uint8_t* target, const Vec8& v) {
    asm volatile("multimem.st.relaxed.sys.global.v2.f32 [%0], {%1, %2};"
                 ::"l"(target), "f"(__uint_as_float(v.word[0])), "f"(__uint_as_float(v.word[1])) : "memory");
}

// What a wait is about. A debug build, whose limit is above 0, stores it to the host's memory at `report` when the
// limit is over: {box << 16 | rank, token, head, word}, all of the first word that lacks. Then it traps.
struct Wanted {
    int64_t report;
    int box, rank, token, head, word;  // rank: whose; word: of 32 bits, the first of the wait
};

constexpr int kQueryBox = 0, kPartialBox = 1, kLseBox = 2;

__device__ inline uint64_t globaltimer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ inline void report_and_trap(const Wanted& wanted, int word) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(wanted.report), "r"(wanted.box << 16 | wanted.rank), "r"(wanted.token), "r"(wanted.head),
                   "r"(wanted.word + word) : "memory");
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("trap;");
}

// A poll's patience: from its first look on.
template <int kLimitMs>
struct Patience {
    uint64_t start = 0;

    __device__ void look(const Wanted& wanted, int word) {
        const uint64_t now = globaltimer();
        if (start == 0) start = now;
        if (now - start > kLimitMs * uint64_t{1000000}) report_and_trap(wanted, word);
    }
};

template <>
struct Patience<0> {
    __device__ void look(const Wanted&, int) {}
};

// Wait until none of the four words at `place` is the sentinel; what has come.
template <uint32_t sentinel, int kLimitMs>
__device__ inline Vec16 wait_for_words(const uint8_t* place, const Wanted& wanted) {
    Patience<kLimitMs> patience;
    for (;;) {
        Vec16 v;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(place) : "memory");
        int missing = 4;
#pragma unroll
        for (int i = 3; i >= 0; --i)
            if (v.word[i] == sentinel) missing = i;
        if (missing == 4) return v;
        patience.look(wanted, missing);
    }
}

template <uint32_t sentinel, int kLimitMs>
__device__ inline uint32_t wait_for_word(const uint8_t* place, const Wanted& wanted) {
    Patience<kLimitMs> patience;
    for (;;) {
        uint32_t word;
        asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
        if (word != sentinel) return word;
        patience.look(wanted, 0);
    }
}
