// What the compiler makes the kernel's own code call: `-fsanitize=thread` at each plain access, and the
// linker in the place of the host's library. Part of machine.cpp.
#pragma once
#include "instructions.ipp"

#define KGEN_HOOK(name, bytes, aligned)                                                                                      \
    extern "C" void __tsan_##name##read##bytes(void* p) { plain(p, bytes, false, aligned, __builtin_return_address(0)); } \
    extern "C" void __tsan_##name##write##bytes(void* p) { plain(p, bytes, true, aligned, __builtin_return_address(0)); }
KGEN_HOOK(, 1, true)
KGEN_HOOK(, 2, true)
KGEN_HOOK(, 4, true)
KGEN_HOOK(, 8, true)
KGEN_HOOK(, 16, true)
KGEN_HOOK(unaligned_, 2, false)
KGEN_HOOK(unaligned_, 4, false)
KGEN_HOOK(unaligned_, 8, false)
KGEN_HOOK(unaligned_, 16, false)

namespace {

void plain_range(const void* p, unsigned long bytes, bool writes, void* here) {
    if (bytes > UINT32_MAX) fault(here, nullptr, "%s %lu bytes at once", writes ? "writes" : "reads", bytes);
    if (bytes) plain(p, static_cast<unsigned>(bytes), writes, false, here);
}

}  // namespace

extern "C" void __tsan_read_range(void* p, unsigned long n) { plain_range(p, n, false, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* p, unsigned long n) { plain_range(p, n, true, __builtin_return_address(0)); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

extern "C" void* __wrap_memcpy(void* target, const void* source, size_t n) {
    plain_range(source, n, false, __builtin_return_address(0));
    plain_range(target, n, true, __builtin_return_address(0));
    return memcpy(target, source, n);
}
extern "C" void* __wrap_memmove(void* target, const void* source, size_t n) {
    plain_range(source, n, false, __builtin_return_address(0));
    plain_range(target, n, true, __builtin_return_address(0));
    return memmove(target, source, n);
}
extern "C" void* __wrap_memset(void* target, int value, size_t n) {
    plain_range(target, n, true, __builtin_return_address(0));
    return memset(target, value, n);
}
