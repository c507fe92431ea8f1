// Fibers: one per CUDA thread, their start, their exit, and what wakes them. Part of machine.cpp.
#pragma once
#include "state.ipp"

namespace {

void make_ready(Fiber* fiber) {
    Warp* warp = fiber->warp;
    fiber->blocked = nullptr;
    warp->ready |= 1u << (fiber->index.x % kLanes);
    if (!warp->listed) {
        warp->listed = true;
        ready.push_back(warp);
    }
}

void block(const char* on, void* here) {
    self->blocked = on;
    self->here = here;
    machine_switch(&self->sp, scheduler_sp);
}

void join(Clocks& into, const Clocks& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

size_t over(int warp) { return 2 * num_warps + warp; }

// Of what a warp or an engine wrote, what the asynchronous proxy sees too.
size_t shown(int writer) { return 3 * num_warps + writer; }

// All that `warp` has done so far is over, and whoever takes its clocks now knows.
void settle(Warp* warp) { warp->clocks[over(warp->id)] = warp->clocks[warp->id]; }

// What it does from now on is later.
void tick(Warp* warp) { ++warp->clocks[warp->id]; }

int agent_of(const Warp* warp) { return static_cast<int>(num_warps) + warp->id; }

void release_barrier(Barrier& barrier) {
    barrier.done = barrier.clocks;
    barrier.arrived = 0;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

void check_wgmmas_over();  // wgmma.ipp

void exit_thread() {
    Cta* cta = self->cta;
    for (auto& group : self->groups)
        if (!group.empty()) fault(group[0].here, nullptr, "exits with a cp.async that it never waited for");
    check_wgmmas_over();
    self->done = true;
    --self->warp->live;
    --cta->live;
    for (auto& [id, barrier] : cta->barriers)
        if (id == 0 && barrier.arrived && barrier.arrived == cta->live) release_barrier(barrier);
    if (cta->live) return;
    cta->exited = true;
    if (!cta->waited) fault(nullptr, nullptr, "no thread of the CTA waited for the previous grid");
    for (auto& [offset, barrier] : cta->mbarriers)
        if (barrier.pending != barrier.count || barrier.tx)
            fault(barrier.here, nullptr, "exits with the mbarrier at %u under-filled: %d arrivals and %d bytes missing",
                  offset, barrier.pending, barrier.tx);
}

void run_fiber() {
    const Launch* mine = self->cta->cluster->grid->launch;
    mine->entry(mine->params);
    exit_thread();
    leave();
}

void start(Fiber* fiber) {
    if (!fiber->stack) {
        void* memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fiber->stack = static_cast<uint8_t*>(memory);
    }
    fiber->sp = machine_stack(fiber->stack + kStack - 64, run_fiber);
    fiber->done = fiber->waited = false;
    fiber->phases = 0;
    fiber->blocked = nullptr;
    fiber->groups.assign(1, {});
}

}  // namespace
