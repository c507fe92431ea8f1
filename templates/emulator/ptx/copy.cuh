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

KGEN_OP inline Vec16 ld_global_cg_16(const void* source) { return machine_load<Vec16>(source, KGEN_HERE); }
KGEN_OP inline Vec8 ld_global_cg_8(const void* source) { return machine_load<Vec8>(source, KGEN_HERE); }
KGEN_OP inline uint32_t ld_global_cg_4(const void* source) { return machine_load<uint32_t>(source, KGEN_HERE); }
KGEN_OP inline uint16_t ld_global_cg_2(const void* source) { return machine_load<uint16_t>(source, KGEN_HERE); }
KGEN_OP inline int64_t ld_global_cg_s64(const void* source) { return machine_load<int64_t>(source, KGEN_HERE); }
KGEN_OP inline Vec16 ld_global_nc_16(const void* source) { return machine_load<Vec16>(source, KGEN_HERE); }

KGEN_OP inline Vec16 ld_shared_16(SharedAddr source) { return machine_load_shared<Vec16>(source, KGEN_HERE); }
KGEN_OP inline Vec8 ld_shared_8(SharedAddr source) { return machine_load_shared<Vec8>(source, KGEN_HERE); }
KGEN_OP inline float ld_shared_f32(SharedAddr source) { return machine_load_shared<float>(source, KGEN_HERE); }

KGEN_OP inline void st_shared_16(SharedAddr target, const Vec16& v) {
    machine::store_shared(target, &v, sizeof v, KGEN_HERE);
}
KGEN_OP inline void st_shared_8(SharedAddr target, float a, float b) {
    const float v[2] = {a, b};
    machine::store_shared(target, v, sizeof v, KGEN_HERE);
}

KGEN_OP inline void cp_async_16(SharedAddr target, const void* source) {
    machine::async_load(target, source, 16, KGEN_HERE);
}
inline void cp_async_commit_group() { machine::async_commit(); }
template <int groups>
KGEN_OP void cp_async_wait_group() { machine::async_wait(groups, KGEN_HERE); }

KGEN_OP inline void cp_async_bulk(SharedAddr target, const void* source, uint32_t bytes, SharedAddr barrier) {
    machine::bulk_load(target, source, bytes, barrier, KGEN_HERE);
}

KGEN_OP inline void cp_async_bulk_multicast(SharedAddr target, const void* source, uint32_t bytes,
                                            SharedAddr barrier, uint16_t ranks) {
    machine::bulk_load_multicast(target, source, bytes, barrier, ranks, KGEN_HERE);
}

KGEN_OP inline void st_async(SharedAddr target, float v, SharedAddr barrier) {
    machine::store_remote(target, &v, sizeof v, barrier, KGEN_HERE);
}
KGEN_OP inline void st_async(SharedAddr target, float a, float b, SharedAddr barrier) {
    const float v[2] = {a, b};
    machine::store_remote(target, v, sizeof v, barrier, KGEN_HERE);
}
KGEN_OP inline void st_async(SharedAddr target, const Vec8& v, SharedAddr barrier) {
    machine::store_remote(target, &v, sizeof v, barrier, KGEN_HERE);
}
KGEN_OP inline void st_async(SharedAddr target, const Vec16& v, SharedAddr barrier) {
    machine::store_remote(target, &v, sizeof v, barrier, KGEN_HERE);
}
