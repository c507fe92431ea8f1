#pragma once
// Switching between stacks: machine_switch(&save, load) keeps what a call must preserve on the
// stack that it leaves, and goes on where the other stack left off.

extern "C" void machine_switch(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
.globl machine_switch
.type machine_switch, @function
machine_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

// A stack that ends at `top` (a multiple of 16) and starts `entry`, which never returns.
inline void* machine_stack(void* top, void (*entry)()) {
    void** sp = static_cast<void**>(top);
    *--sp = nullptr;  // entry's return address
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
#elif defined(__aarch64__)
asm(R"(
.globl machine_switch
.type machine_switch, %function
machine_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");

inline void* machine_stack(void* top, void (*entry)()) {
    void** sp = static_cast<void**>(top) - 20;
    for (int i = 0; i < 20; ++i) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void*>(entry);  // x30
    return sp;
}
#else
#error "the executor knows how to switch stacks on x86-64 and on aarch64 only"
#endif
