#pragma once
// The host's twin of mailbox.cuh.
#include "ptx/types.cuh"

constexpr uint32_t kSentinel = 0xFFFFFFFFu;
constexpr uint32_t kPartialSentinel = 0x80000000u;

KGEN_OP inline void st_relaxed_sys(uint8_t* target, uint32_t word) {
    machine::store_mailbox(target, &word, sizeof word, false, KGEN_HERE);
}
KGEN_OP inline void st_relaxed_sys(uint8_t* target, const Vec16& v) {
    machine::store_mailbox(target, &v, sizeof v, false, KGEN_HERE);
}
KGEN_OP inline void st_relaxed_sys(uint8_t* target, const Vec8& v) {
    machine::store_mailbox(target, &v, sizeof v, false, KGEN_HERE);
}
KGEN_OP inline void multimem_st_relaxed_sys(uint8_t* target, const Vec16& v) {
    machine::store_mailbox(target, &v, sizeof v, true, KGEN_HERE);
}
KGEN_OP inline void multimem_st_relaxed_sys(uint8_t* target, const Vec8& v) {
    machine::store_mailbox(target, &v, sizeof v, true, KGEN_HERE);
}

// What a watchdog would report; here a wait without end is a deadlock, which is reported in any case.
struct Wanted {
    int64_t report;
    int box, rank, token, head, word;
};

constexpr int kQueryBox = 0, kPartialBox = 1, kLseBox = 2;

template <uint32_t sentinel, int>
KGEN_OP Vec16 wait_for_words(const uint8_t* place, const Wanted&) {
    Vec16 v;
    machine::wait_for_words(&v, place, sizeof v, sentinel, KGEN_HERE);
    return v;
}

template <uint32_t sentinel, int>
KGEN_OP uint32_t wait_for_word(const uint8_t* place, const Wanted&) {
    uint32_t word;
    machine::wait_for_words(&word, place, sizeof word, sentinel, KGEN_HERE);
    return word;
}
