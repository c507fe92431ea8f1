// The scheduler: whose turn it is, what is resident, and what a deadlock lacks. Part of machine.cpp.
#pragma once
#include "wgmma.ipp"

namespace {

constexpr int kTurn = 256;  // switches of a warp's turn, at most

void run_warp(Warp* warp) {
    for (uint32_t left = warp->ready; left; left &= left - 1) {
        const auto* frame = static_cast<const char*>(warp->sps[std::countr_zero(left)]);
        for (int line = 0; line < 4; ++line) __builtin_prefetch(frame + 64 * line);
    }
    for (turn = 1 + static_cast<int>(draw(kTurn)); warp->ready && turn > 0 && !failed; --turn) {
        const int lane = take_ready(warp);
        self = warp->lanes[lane];
        machine_switch(&scheduler_sp, warp->sps[lane]);
        self = nullptr;
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
        snprintf(text, sizeof text, "block barrier %d, which has %d of %d threads", id, static_cast<int>(barrier.waiting.size()), barrier.expected);
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
    cluster->number = number;
    cluster->barrier = {};
    for (auto& warp : cluster->warps) {
        warp->clocks.assign(kParts * num_warps, 0);
        warp->over = nullptr;
        warp->joined = nullptr;
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
        memset(cta->smem, 0xFF, mine->smem);
        cta->granules.reset((mine->smem + kGranule - 1) / kGranule, cta->warps.size());
        cta->words.reset(kGranule / kWord * cta->granules.at.size(), cta->warps.size());
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

size_t stacks_bytes(const Warp& warp) { return whole_pages(warp.lanes.size() * kStack); }

// The CTA of `rank`, its warps and their fibers, with memory of their own.
void add_cta(Cluster* cluster, uint32_t rank) {
    cluster->ctas.push_back(std::make_unique<Cta>());
    Cta* cta = cluster->ctas.back().get();
    cta->cluster = cluster;
    cta->rank = static_cast<int>(rank);
    cta->smem = map_guarded(whole_pages(launch->smem), PROT_READ | PROT_WRITE);
    for (uint32_t thread = 0; thread < launch->threads; ++thread) {
        if (thread % kLanes == 0) {
            cluster->warps.push_back(std::make_unique<Warp>());
            cta->warps.push_back(cluster->warps.back().get());
            cta->warps.back()->cta = cta;
            cta->warps.back()->index = static_cast<int>(cta->warps.size()) - 1;
            cta->warps.back()->id = static_cast<int>(cluster->warps.size()) - 1;
        }
        cluster->fibers.push_back(std::make_unique<Fiber>());
        Fiber* fiber = cluster->fibers.back().get();
        fiber->cta = cta;
        fiber->warp = cta->warps.back();
        fiber->index = {thread, 0, 0};
        fiber->warp->lanes.push_back(fiber);
    }
    for (Warp* warp : cta->warps) warp->stacks = map_guarded(stacks_bytes(*warp), PROT_READ | PROT_WRITE);
}

std::unique_ptr<Cluster> make_cluster(Grid* grid) {
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = grid;
    for (uint32_t rank = 0; rank < launch->cluster; ++rank) add_cta(cluster.get(), rank);
    return cluster;
}

void unmap_cluster(const Cluster& cluster) {
    for (auto& cta : cluster.ctas) unmap_guarded(cta->smem, whole_pages(launch->smem));
    for (auto& warp : cluster.warps) unmap_guarded(warp->stacks, stacks_bytes(*warp));
}

}  // namespace
