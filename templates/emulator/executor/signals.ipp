// Signals: an image's page comes when it is touched; what no check saw before, a guard page stops, and the
// run ends with a report. Part of machine.cpp.
#pragma once
#include "global.ipp"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

pthread_t runner;
struct sigaction earlier[std::size(kSignals)];

// Where the thread goes on after a signal.
void go_on_at(void* raw, void (*function)(), uint8_t* stack) {
    auto& machine = static_cast<ucontext_t*>(raw)->uc_mcontext;
    const auto ip = reinterpret_cast<uintptr_t>(function), sp = reinterpret_cast<uintptr_t>(stack) / 16 * 16;
#if defined(__x86_64__)
    machine.gregs[REG_RIP] = static_cast<greg_t>(ip);
    machine.gregs[REG_RSP] = static_cast<greg_t>(sp - 8);  // as after a call
#else
    machine.pc = ip;
    machine.sp = sp;
#endif
}

// The innermost place in the kernel's library on this stack, or null.
void* place_in_kernel() {
    void* found = nullptr;
    const auto look = [](_Unwind_Context* frame, void* into) {
        int interrupted = 0;  // here, not in a call that this frame made
        const uintptr_t ip = _Unwind_GetIPInfo(frame, &interrupted);
        if (!of_library(ip)) return _URC_NO_REASON;
        *static_cast<void**>(into) = reinterpret_cast<void*>(ip + interrupted);  // as a return address
        return _URC_END_OF_STACK;
    };
    _Unwind_Backtrace(look, &found);
    return found;
}

std::string what_happened(int signal, uintptr_t at) {
    if (signal == SIGFPE) return "divides by zero, or to a quotient that has no place: on a GPU it is undefined";
    if (signal == SIGILL) return "comes to where no code is";
    const auto stacks = reinterpret_cast<uintptr_t>(self->warp->stacks);
    if (at < stacks && at >= stacks - kGuard) return "has used up its stack of " + std::to_string(kStack) + " bytes";
    return "touches memory that is not the kernel's, and no check saw it: " + nearest(at, 1);
}

void on_signal(int signal, siginfo_t* info, void* raw) {
    const bool ours = pthread_equal(pthread_self(), runner);
    if (ours && signal == SIGSEGV && fill_at(info->si_addr)) return;
    if (!ours || !self) {  // not the kernel's doing: what was there before takes it
        for (size_t i = 0; i < std::size(kSignals); ++i)
            if (kSignals[i] == signal) sigaction(signal, &earlier[i], nullptr);
        return;
    }
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    lost(place_in_kernel(), nullptr, "%s: %s", who(self).c_str(), what_happened(signal, at).c_str());
    go_on_at(raw, leave, self->stack + kStack - 64);
}

// While it lives, signals of this thread come to on_signal.
class Signals {
public:
    Signals() {
        runner = pthread_self();
        static uint8_t stack[64 << 10];
        const stack_t own = {stack, 0, sizeof stack};
        sigaltstack(&own, &earlier_stack);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &earlier[i]);
    }
    ~Signals() {
        for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &earlier[i], nullptr);
        sigaltstack(&earlier_stack, nullptr);
    }

private:
    stack_t earlier_stack;
};

}  // namespace
