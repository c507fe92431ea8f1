#pragma once
// The host's twin of copy.cuh.
#include "ptx/sync.cuh"

template <class T>
inline T machine_load(const void* source, void* here) {
    T v;
    machine::load_global(&v, source, sizeof v, here);
    return v;
}

template <class T>
inline T machine_load_shared(SharedAddr source, void* here) {
    T v;
    machine::load_shared(&v, source, sizeof v, here);
    return v;
}

KGEN_OP inline Vec16 load_fresh16(const void* source) { return machine_load<Vec16>(source, KGEN_HERE); }
KGEN_OP inline Vec8 load_fresh8(const void* source) { return machine_load<Vec8>(source, KGEN_HERE); }
KGEN_OP inline uint32_t load_fresh4(const void* source) { return machine_load<uint32_t>(source, KGEN_HERE); }
KGEN_OP inline uint16_t load_fresh2(const void* source) { return machine_load<uint16_t>(source, KGEN_HERE); }
KGEN_OP inline int64_t load_fresh_i64(const void* source) { return machine_load<int64_t>(source, KGEN_HERE); }
KGEN_OP inline Vec16 load_constant16(const void* source) { return machine_load<Vec16>(source, KGEN_HERE); }

KGEN_OP inline Vec16 load_shared16(SharedAddr source) { return machine_load_shared<Vec16>(source, KGEN_HERE); }
KGEN_OP inline Vec8 load_shared8(SharedAddr source) { return machine_load_shared<Vec8>(source, KGEN_HERE); }
KGEN_OP inline float load_shared_float(SharedAddr source) { return machine_load_shared<float>(source, KGEN_HERE); }

KGEN_OP inline void store_shared16(SharedAddr target, const Vec16& v) {
    machine::store_shared(target, &v, sizeof v, KGEN_HERE);
}
KGEN_OP inline void store_shared8(SharedAddr target, float a, float b) {
    const float v[2] = {a, b};
    machine::store_shared(target, v, sizeof v, KGEN_HERE);
}

KGEN_OP inline void async_load16(SharedAddr target, const void* source) {
    machine::async_load(target, source, 16, KGEN_HERE);
}
inline void async_commit() { machine::async_commit(); }
template <int groups>
KGEN_OP void async_wait() { machine::async_wait(groups, KGEN_HERE); }

KGEN_OP inline void bulk_load(SharedAddr target, const void* source, uint32_t bytes, SharedAddr barrier) {
    machine::bulk_load(target, source, bytes, barrier, KGEN_HERE);
}

KGEN_OP inline void store_remote(SharedAddr target, float v, SharedAddr barrier) {
    machine::store_remote(target, &v, sizeof v, barrier, KGEN_HERE);
}
KGEN_OP inline void store_remote(SharedAddr target, float a, float b, SharedAddr barrier) {
    const float v[2] = {a, b};
    machine::store_remote(target, v, sizeof v, barrier, KGEN_HERE);
}
KGEN_OP inline void store_remote(SharedAddr target, const Vec16& v, SharedAddr barrier) {
    machine::store_remote(target, &v, sizeof v, barrier, KGEN_HERE);
}
