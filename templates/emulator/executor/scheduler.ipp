// The scheduler: whose turn it is, what is resident, and what a deadlock lacks. Part of machine.cpp.
#pragma once
#include "wgmma.ipp"

namespace {

void run_warp(Warp* warp) {
    while (warp->ready && !failed) {
        uint32_t lanes = warp->ready;
        for (uint32_t skip = draw(__builtin_popcount(lanes)); skip; --skip) lanes &= lanes - 1;
        const int lane = __builtin_ctz(lanes);
        warp->ready &= ~(1u << lane);
        self = warp->lanes[lane];
        machine_switch(&scheduler_sp, self->sp);
        self = nullptr;
        if (draw(64) == 0) break;  // another warp's turn
    }
}

// What a fiber waits for, and what that lacks.
std::string what_lacks(Fiber* fiber) {
    const auto waits = [fiber](const std::vector<Fiber*>& waiting) {
        return std::find(waiting.begin(), waiting.end(), fiber) != waiting.end();
    };
    const Cta* cta = fiber->cta;
    char text[160];
    for (auto& [offset, barrier] : cta->mbarriers) {
        if (!waits(barrier.waiting)) continue;
        snprintf(text, sizeof text, "the mbarrier at %u, which lacks %d arrivals and %d bytes", offset, barrier.pending, barrier.tx);
        return text;
    }
    for (auto& [id, barrier] : cta->barriers) {
        if (!waits(barrier.waiting)) continue;
        snprintf(text, sizeof text, "block barrier %d, which has %d of %d threads", id, barrier.arrived, barrier.expected);
        return text;
    }
    return fiber->blocked ? fiber->blocked : "nothing";
}

// Who waits for what, and where: the places are written <0x..>, for their lines.
void report_deadlock() {
    struct Group { std::string first; int others; };
    std::map<std::pair<void*, std::string>, Group> groups;
    const auto count = [&groups](Fiber* fiber) {
        if (fiber->done) return;
        auto [found, fresh] = groups.try_emplace({fiber->here, what_lacks(fiber)}, Group{who(fiber), 0});
        found->second.others += !fresh;
    };
    for (auto& cluster : resident)
        for (auto& fiber : cluster->fibers) count(fiber.get());
    std::string all = "deadlock:";
    int shown = 0;
    for (auto& [key, group] : groups) {
        if (++shown > 12) break;
        char place[32];
        snprintf(place, sizeof place, "<%#llx>", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(key.first)));
        all += "\n  " + group.first + " waits for " + key.second;
        if (group.others) all += ", as do " + std::to_string(group.others) + " others";
        all += std::string(": ") + place;
    }
    if (groups.size() > 12) all += "\n  and " + std::to_string(groups.size() - 12) + " groups more";
    lost(groups.empty() ? nullptr : groups.begin()->first.first, nullptr, "%s", all.c_str());
}

void prepare_cluster(Cluster* cluster, uint32_t number) {
    const Launch* mine = cluster->grid->launch;
    const uint32_t along = mine->grid[0] / mine->cluster;
    const uint32_t x = number % along * mine->cluster, y = number / along % mine->grid[1];
    const uint32_t z = number / along / mine->grid[1];
    const size_t words = (mine->smem + 3) / 4, warps_per_cta = (mine->threads + kLanes - 1) / kLanes;
    cluster->number = number;
    cluster->barrier = {};
    for (auto& warp : cluster->warps) {
        warp->clocks.assign(kParts * num_warps, 0);
        tick(warp.get());
        warp->ready = 0;
        warp->listed = false;
        warp->live = static_cast<int>(warp->lanes.size());
        warp->meeting = {};
        warp->agent_clock = 0;
    }
    for (auto& cta : cluster->ctas) {
        cta->block = {x + static_cast<uint32_t>(cta->rank), y, z};
        cta->live = static_cast<int>(mine->threads);
        cta->exited = cta->waited = false;
        cta->smem.assign(mine->smem, 0xFF);
        cta->words.assign(words, {});
        cta->reads.assign(words * warps_per_cta, 0);
        cta->read_from.assign(words * warps_per_cta, nullptr);
        cta->barriers.clear();
        cta->mbarriers.clear();
    }
    for (auto& fiber : cluster->fibers) {
        start(fiber.get());
        make_ready(fiber.get());
    }
}

bool live() {
    for (auto& cluster : resident)
        for (auto& cta : cluster->ctas)
            if (cta->live) return true;
    return false;
}

// Run the resident clusters to their end.
void run_resident() {
    while (live() && !failed) {
        if (!pending.empty() && (ready.empty() || (!launch->lazy && draw(4) == 0))) {
            finish_one();
            continue;
        }
        if (ready.empty()) return report_deadlock();
        const size_t i = draw(ready.size());
        Warp* warp = ready[i];
        run_warp(warp);
        if (!warp->ready) {
            *std::find(ready.begin(), ready.end(), warp) = ready.back();
            ready.pop_back();
            warp->listed = false;
        }
    }
    while (!pending.empty() && !failed) finish_one();
}

std::unique_ptr<Cluster> make_cluster(Grid* grid) {
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = grid;
    for (uint32_t rank = 0; rank < launch->cluster; ++rank) {
        cluster->ctas.push_back(std::make_unique<Cta>());
        Cta* cta = cluster->ctas.back().get();
        cta->cluster = cluster.get();
        cta->rank = static_cast<int>(rank);
        for (uint32_t thread = 0; thread < launch->threads; ++thread) {
            if (thread % kLanes == 0) {
                cluster->warps.push_back(std::make_unique<Warp>());
                cluster->warps.back()->cta = cta;
                cluster->warps.back()->id = static_cast<int>(cluster->warps.size()) - 1;
                cta->warps.push_back(cluster->warps.back().get());
            }
            cluster->fibers.push_back(std::make_unique<Fiber>());
            Fiber* fiber = cluster->fibers.back().get();
            fiber->cta = cta;
            fiber->warp = cluster->warps.back().get();
            fiber->index = {thread, 0, 0};
            fiber->warp->lanes.push_back(fiber);
        }
    }
    return cluster;
}

void drop_stacks() {
    for (auto& cluster : resident)
        for (auto& fiber : cluster->fibers)
            if (fiber->stack) munmap(fiber->stack, kStack);
    resident.clear();
}

}  // namespace
