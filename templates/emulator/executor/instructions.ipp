// What the twins of the device headers call. Part of machine.cpp.
#pragma once
#include "meetings.ipp"

namespace machine {

Index thread_index() { return self->index; }
Index block_index() { return self->cta->block; }
Index block_size() { return block_dim; }
Index grid_size() { return grid_dim; }

uint8_t* shared_memory() { return self->cta->smem; }

Address shared_address(const void* pointer) {
    const auto offset = static_cast<const uint8_t*>(pointer) - self->cta->smem;
    return static_cast<Address>(self->cta->rank + 1) << 24 | static_cast<Address>(offset);
}

Address map_to_rank(Address address, uint32_t rank) { return (rank + 1) << 24 | (address & 0xFFFFFF); }

void block_barrier(int id, int threads, void* here) {
    Cta* cta = self->cta;
    Barrier& barrier = cta->barriers[id];
    if (!barrier.waiting.empty() && threads && barrier.expected != threads)
        fault(here, nullptr, "block barrier %d of %d threads, which others call with %d", id, threads, barrier.expected);
    barrier.expected = threads ? threads : cta->live;
    barrier.waiting.push_back(self);
    if (static_cast<int>(barrier.waiting.size()) == barrier.expected) release_barrier(barrier);
    block("a block barrier", here);
}

void warp_barrier(void* here) { meet(nullptr, act_nothing, "__syncwarp", here); }

void cluster_arrive(void* here) {
    self->here = here;
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    if (self->arrival == barrier.phase + 1) fault(here, nullptr, "arrives twice at the cluster barrier");
    self->arrival = barrier.phase + 1;
    if (++barrier.arrived < static_cast<int>(self->cta->cluster->fibers.size())) return;
    barrier.arrived = 0;
    ++barrier.phase;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

void cluster_wait(void* here) {
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    if (!self->arrival) fault(here, nullptr, "waits at the cluster barrier without an arrival");
    if (self->arrival > barrier.phase) {
        barrier.waiting.push_back(self);
        block("the cluster barrier", here);
    }
    self->phases = self->arrival;
}

uint32_t shuffle(uint32_t value, int source, void* here) {
    ShuffleLane lane = {value, source, 0};
    meet(&lane, act_shuffle, "a shuffle", here);
    return lane.result;
}

void mma(float* d, const uint32_t* a, const uint32_t* b, void* here) {
    MmaLane lane = {d, a, b};
    meet(&lane, act_mma, "mma.sync", here);
}

void load_matrix(uint32_t* out, Address row, bool transposed, void* here) {
    const Place place = resolve(row, 16, here);
    if (place.cta != self->cta) fault(here, nullptr, "ldmatrix of another CTA's shared memory");
    MatrixLane lane = {out, place, transposed, here};
    meet(&lane, act_matrix, "ldmatrix", here);
}

void mbarrier_init(Address address, uint32_t arrivals, void* here) {
    const Place place = resolve(address, 8, here);
    Mbarrier barrier;
    barrier.count = barrier.pending = static_cast<int>(arrivals);
    barrier.clocks.assign(kParts * num_warps, 0);
    barrier.done = barrier.clocks;
    barrier.here = here;
    barrier.maker = self->warp->id;
    barrier.made = self->warp->clocks[self->warp->id];
    place.cta->mbarriers[place.offset] = barrier;
    mark_write(place.cta, place.offset, 8, kMbarrier, 0, here);
}

void mbarrier_init_fence(void*) {
    const ClusterBarrier& cluster = self->cta->cluster->barrier;
    const bool arrived = self->arrival == cluster.phase + 1;
    for (auto& [offset, barrier] : self->cta->mbarriers) {
        if (barrier.fenced || barrier.maker != self->warp->id) continue;
        barrier.fenced = true;
        barrier.since = cluster.phase + 1 + arrived;
    }
}

void mbarrier_arrive(Address address, void* here) { arrive(address, 0, here); }

void mbarrier_expect(Address address, uint32_t bytes, void* here) { arrive(address, bytes, here); }

void mbarrier_wait(Address address, uint32_t parity, void* here) {
    Mbarrier& barrier = mbarrier_at(address, here);
    while ((barrier.phase & 1) == parity) {
        barrier.waiting.push_back(self);
        block("an mbarrier", here);
    }
    Warp* warp = self->warp;
    if (warp->joined == &barrier && warp->joined_phase == barrier.phase) return;
    learn(warp, barrier.done);
    warp->joined = &barrier;
    warp->joined_phase = barrier.phase;
}

void wait_for_previous_grid(void*) { self->waited = self->cta->waited = true; }

void launch_next_grid(void*) {}

void load_shared(void* out, Address source, unsigned bytes, void* here) {
    const Place place = resolve(source, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "reads another CTA's shared memory");
    check_read(place.cta, place.offset, bytes, here);
    memcpy(out, place.cta->smem + place.offset, bytes);
}

void store_shared(Address target, const void* value, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "a plain store to another CTA's shared memory");
    write_shared(place.cta, place.offset, bytes, here);
    memcpy(place.cta->smem + place.offset, value, bytes);
}

void load_global(void* out, const void* source, unsigned bytes, void* here) {
    if (reinterpret_cast<uintptr_t>(source) % bytes) fault(here, nullptr, "reads %u bytes at a misaligned address", bytes);
    check_global(source, bytes, false, here);
    memcpy(out, source, bytes);
}

void check_atomic(const void* address, unsigned bytes, void* here) {
    if (reinterpret_cast<uintptr_t>(address) % bytes) fault(here, nullptr, "changes %u bytes at a misaligned address", bytes);
    check_global(address, bytes, true, here, true);
}

void async_load(Address target, const void* source, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "cp.async to another CTA's shared memory");
    if (reinterpret_cast<uintptr_t>(source) % bytes) fault(here, nullptr, "copies %u bytes from a misaligned address", bytes);
    check_global(source, bytes, false, here);
    self->copies.push_back(make_copy(place, source, bytes, here));
    reserve(self->copies.back());
}

void async_commit() { self->groups.push_back(self->copies.size()); }

void async_wait(int groups, void*) {
    const auto over = static_cast<long>(self->groups.size()) - groups;
    if (over <= 0) return;
    const size_t count = self->groups[over - 1];
    for (size_t i = 0; i < count; ++i) {
        const Copy& copy = self->copies[i];
        finish(copy);
        Clock& seen = self->warp->clocks[copy.agent];
        seen = std::max(seen, copy.clock);
    }
    self->copies.erase(self->copies.begin(), self->copies.begin() + static_cast<long>(count));
    self->groups.erase(self->groups.begin(), self->groups.begin() + over);
    for (size_t& end : self->groups) end -= count;
}

void bulk_load(Address target, const void* source, unsigned bytes, Address barrier, void* here) {
    if (bytes % 16 || reinterpret_cast<uintptr_t>(source) % 16 || target % 16)
        fault(here, nullptr, "a bulk copy of %u bytes: sizes and addresses are multiples of 16", bytes);
    check_global(source, bytes, false, here);
    issue(make_copy(resolve(target, bytes, here), source, bytes, here), barrier);
}

// To each CTA of the mask `ctas`: to the same place there, counted on the mbarrier at the same place.
void bulk_load_multicast(Address target, const void* source, unsigned bytes, Address barrier, uint32_t ctas, void* here) {
    const size_t size = self->cta->cluster->ctas.size();
    if (!ctas || ctas >> size) fault(here, nullptr, "a bulk copy to the CTAs of mask %#x, of a cluster of %zu", ctas, size);
    for (; ctas; ctas &= ctas - 1) {
        const auto rank = static_cast<uint32_t>(std::countr_zero(ctas));
        bulk_load(map_to_rank(target, rank), source, bytes, map_to_rank(barrier, rank), here);
    }
}

// Each 32-bit word travels alone; `everywhere`: `target` is a multicast address.
void store_mailbox(void* target, const void* value, unsigned bytes, bool everywhere, void* here) {
    const Launch* mine = self->cta->cluster->grid->launch;
    auto* place = static_cast<uint8_t*>(target);
    if (!self->waited && !mine->late) fault(here, nullptr, "writes a mailbox before it waited for the previous grid");
    if (reinterpret_cast<uintptr_t>(target) % bytes) fault(here, nullptr, "writes %u bytes at a misaligned address", bytes);
    if (!everywhere) return send_words(place, value, bytes, here);
    for (const Grid& grid : grids)
        send_words(grid.images[grid.launch->mailbox].base + (place - mine->multicast), value, bytes, here);
}

void wait_for_words(void* out, const void* place, unsigned bytes, uint32_t sentinel, void* here) {
    const auto* words = static_cast<const uint8_t*>(place);
    if (reinterpret_cast<uintptr_t>(place) % bytes) fault(here, nullptr, "polls %u bytes at a misaligned address", bytes);
    check_global(place, bytes, false, here);
    for (unsigned i = 0; i < bytes; i += 4)
        while (word_at(words + i) == sentinel) {
            pollers.emplace(piece_of(place), self);
            block("a mailbox", here);
        }
    memcpy(out, place, bytes);
}

void store_remote(Address target, const void* value, unsigned bytes, Address barrier, void* here) {
    Copy copy = make_copy(resolve(target, bytes, here), nullptr, bytes, here);
    memcpy(copy.value, value, bytes);
    issue(copy, barrier);
}

}  // namespace machine
