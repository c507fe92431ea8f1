#pragma once
// The host's twin of mailbox.cuh.
#include "types.cuh"

constexpr uint32_t kSentinel = 0xFFFFFFFFu;

KGEN_OP inline void system_store(uint8_t* target, const Vec16& v) {
    machine::store_mailbox(target, &v, sizeof v, false, KGEN_HERE);
}
KGEN_OP inline void system_store(uint8_t* target, const Vec8& v) {
    machine::store_mailbox(target, &v, sizeof v, false, KGEN_HERE);
}
KGEN_OP inline void multicast_store(uint8_t* target, const Vec16& v) {
    machine::store_mailbox(target, &v, sizeof v, true, KGEN_HERE);
}
KGEN_OP inline void multicast_store(uint8_t* target, const Vec8& v) {
    machine::store_mailbox(target, &v, sizeof v, true, KGEN_HERE);
}
KGEN_OP inline void wait_for_words(const uint8_t* place) { machine::wait_for_words(place, kSentinel, KGEN_HERE); }
