// Fibers: one per CUDA thread, their start, their exit, and what wakes them. Part of machine.cpp.
#pragma once
#include "images.ipp"

namespace {

// NOTE: no power of two, so that the frames of a warp's lanes fall into different sets of the caches.
constexpr size_t kStack = (64 << 10) + 33 * 64;

int lane_of(const Fiber* fiber) { return static_cast<int>(fiber->index.x % kLanes); }

void list(Warp* warp) {
    if (warp->listed) return;
    warp->listed = true;
    ready.push_back(warp);
}

void make_ready(Fiber* fiber) {
    fiber->warp->ready |= 1u << lane_of(fiber);
    list(fiber->warp);
}

// Any lane of `warp` that is ready; now it is not.
int take_ready(Warp* warp) {
    const int first = static_cast<int>(random_bits() % kLanes);
    const int lane = (std::countr_zero(std::rotr(warp->ready, first)) + first) % kLanes;
    warp->ready &= ~(1u << lane);
    return lane;
}

// Wait until made ready; another lane goes on while its warp has its turn.
void block(const char* on, void* here) {
    Fiber* fiber = self;
    Warp* warp = fiber->warp;
    fiber->blocked = on;
    fiber->here = here;
    void* next = scheduler_sp;
    if (warp->ready && --turn > 0) {
        const int lane = take_ready(warp);
        self = warp->lanes[lane];
        if (self == fiber) return;
        next = warp->sps[lane];
    }
    machine_switch(&warp->sps[lane_of(fiber)], next);
}

void join(Clock* into, const Clock* from, size_t count) {
    for (size_t i = 0; i < count; ++i) into[i] = std::max(into[i], from[i]);
}

void join(Clocks& into, const Clocks& from) { join(into.data(), from.data(), from.size()); }

// `warp` waited for what `from` tells of.
void learn(Warp* warp, const Clocks& from) {
    join(warp->clocks, from);
    warp->over = nullptr;
}

size_t over(int warp) { return 2 * num_warps + warp; }

// Of what a warp or an engine wrote, what the asynchronous proxy sees too.
size_t shown(int writer) { return 3 * num_warps + writer; }

// All that `warp` has done so far is over, and whoever takes its clocks now knows.
void settle(Warp* warp) {
    warp->clocks[over(warp->id)] = warp->clocks[warp->id];
    warp->over = nullptr;
}

// What it does from now on is later.
void tick(Warp* warp) { ++warp->clocks[warp->id]; }

// Which accesses `warp` knows to be over, kept for the copies that it issues.
const Clocks* keep_over(Warp* warp) {
    if (!warp->over) {
        const auto first = warp->clocks.begin() + static_cast<long>(over(0));
        kept.emplace_back(first, first + static_cast<long>(num_warps));
        warp->over = &kept.back();
    }
    return warp->over;
}

int agent_of(const Warp* warp) { return static_cast<int>(num_warps) + warp->id; }

// Those who wait go on, and know of all that their warps had done.
void release_barrier(Barrier& barrier) {
    std::vector<Warp*> warps;
    for (Fiber* fiber : barrier.waiting) {
        warps.push_back(fiber->warp);
        make_ready(fiber);
    }
    barrier.waiting.clear();
    std::sort(warps.begin(), warps.end());
    warps.erase(std::unique(warps.begin(), warps.end()), warps.end());
    Clocks all(kParts * num_warps);
    for (Warp* warp : warps) {
        settle(warp);
        join(all, warp->clocks);
    }
    for (Warp* warp : warps) {
        learn(warp, all);
        tick(warp);
    }
}

void check_wgmmas_over();  // wgmma.ipp

void exit_thread() {
    Cta* cta = self->cta;
    if (!self->copies.empty()) fault(self->copies[0].here, nullptr, "exits with a cp.async that it never waited for");
    check_wgmmas_over();
    self->done = true;
    --self->warp->live;
    --cta->live;
    for (auto& [id, barrier] : cta->barriers)
        if (id == 0 && !barrier.waiting.empty() && static_cast<int>(barrier.waiting.size()) == cta->live)
            release_barrier(barrier);
    if (cta->live) return;
    cta->exited = true;
    if (!cta->waited) fault(nullptr, nullptr, "no thread of the CTA waited for the previous grid");
    for (auto& [offset, barrier] : cta->mbarriers)
        if (barrier.pending != barrier.count || barrier.tx)
            fault(barrier.here, nullptr, "exits with the mbarrier at %u under-filled: %d arrivals and %d bytes missing",
                  offset, barrier.pending, barrier.tx);
}

void run_fiber() {
    const Grid* grid = self->cta->cluster->grid;
    grid->launch->entry(grid->params);
    exit_thread();
    leave();
}

void start(Fiber* fiber) {
    const int lane = lane_of(fiber);
    fiber->stack = fiber->warp->stacks + lane * kStack;
    fiber->warp->sps[lane] = machine_stack(fiber->stack + kStack - 64, run_fiber);
    fiber->hit = {};
    fiber->done = fiber->waited = false;
    fiber->arrival = fiber->phases = 0;
    fiber->blocked = nullptr;
    fiber->copies.clear();
    fiber->groups.clear();
}

}  // namespace
