// The executor: one fiber per CUDA thread, one cluster at a time, from a seed.
//
// Every access is checked against what ordered it: each warp has a vector clock, and so has the
// asynchronous engine that works for it; barriers and mbarriers join them. What is not ordered is
// reported, whether or not it went wrong this time. A clock of W warps has 5 W parts: what is seen of
// the warps' writes, of their engines' writes, which of their accesses are over, and what of both kinds of
// writes the asynchronous proxy sees. An asynchronous
// store brings its own bytes and what was over when it was issued, not its thread's other writes.
#include "scheduler.ipp"

// Run the grids of `count` ranks. One rank's clusters run one after the other; several ranks poll one
// another, so that all of their clusters are resident. Returns 0, or 1 with the first launch's
// `report` and `places` filled.
extern "C" int machine_run(Launch* launches, int count) {
    launch = launches;
    rng.seed(launch->seed);
    failed = false;
    block_dim = {launch->threads, 1, 1};
    grid_dim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    num_warps = static_cast<size_t>(launch->cluster) * ((launch->threads + kLanes - 1) / kLanes);
    ready.clear();
    pending.clear();
    pollers.clear();
    grids.clear();
    tensors.clear();
    warpgroups.clear();
    for (int i = 0; i < count; ++i) {
        grids.push_back({&launches[i], {}});
        for (int j = 0; j < launches[i].num_buffers; ++j)
            grids.back().writers.emplace_back(launches[i].buffers[j].kind == kStepOut ? launches[i].buffers[j].bytes : 0);
    }
    const uint32_t clusters = launch->grid[0] / launch->cluster * launch->grid[1] * launch->grid[2];
    for (auto& grid : grids) {
        for (uint32_t number = 0; number < clusters && !failed; ++number) {
            if (count > 1 || !number) resident.push_back(make_cluster(&grid));
            prepare_cluster(resident.back().get(), number);
            if (count == 1) run_resident();
        }
    }
    if (count > 1) run_resident();
    drop_stacks();
    return failed;
}

namespace machine {

Index thread_index() { return self->index; }
Index block_index() { return self->cta->block; }
Index block_size() { return block_dim; }
Index grid_size() { return grid_dim; }

uint8_t* shared_memory() { return self->cta->smem.data(); }

Address shared_address(const void* pointer) {
    const auto offset = static_cast<const uint8_t*>(pointer) - self->cta->smem.data();
    return static_cast<Address>(self->cta->rank + 1) << 24 | static_cast<Address>(offset);
}

Address map_to_rank(Address address, uint32_t rank) { return (rank + 1) << 24 | (address & 0xFFFFFF); }

void block_barrier(int id, int threads, void* here) {
    Cta* cta = self->cta;
    Barrier& barrier = cta->barriers[id];
    const int expected = threads ? threads : cta->live;
    if (barrier.arrived && threads && barrier.expected != threads)
        fault(here, nullptr, "block barrier %d of %d threads, which others call with %d", id, threads, barrier.expected);
    barrier.expected = expected;
    settle(self->warp);
    join(barrier.clocks, self->warp->clocks);
    tick(self->warp);
    if (++barrier.arrived == expected) {
        release_barrier(barrier);
    } else {
        barrier.waiting.push_back(self);
        block("a block barrier", here);
    }
    join(self->warp->clocks, cta->barriers[id].done);
}

void warp_barrier(void* here) { meet(nullptr, act_nothing, "__syncwarp", here); }

void cluster_arrive(void* here) {
    self->here = here;
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    if (barrier.arrivals.count(self) && barrier.arrivals[self] == barrier.phase)
        fault(here, nullptr, "arrives twice at the cluster barrier");
    barrier.arrivals[self] = barrier.phase;
    if (++barrier.arrived < static_cast<int>(self->cta->cluster->fibers.size())) return;
    barrier.arrived = 0;
    ++barrier.phase;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

void cluster_wait(void* here) {
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    auto mine = barrier.arrivals.find(self);
    if (mine == barrier.arrivals.end()) fault(here, nullptr, "waits at the cluster barrier without an arrival");
    const uint32_t phases = mine->second + 1;
    if (phases > barrier.phase) {
        barrier.waiting.push_back(self);
        block("the cluster barrier", here);
    }
    self->phases = phases;
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
    check_read(place.cta, place.offset, 16, here, true);
    MatrixLane lane = {out, place.cta->smem.data() + place.offset, transposed};
    meet(&lane, act_matrix, "ldmatrix", here);
}

void mbarrier_init(Address address, uint32_t arrivals, void* here) {
    const Place place = resolve(address, 8, here);
    Mbarrier barrier;
    barrier.count = barrier.pending = static_cast<int>(arrivals);
    barrier.clocks.assign(kParts * num_warps, 0);
    barrier.here = here;
    barrier.maker = self->warp->id;
    barrier.made = self->warp->clocks[self->warp->id];
    place.cta->mbarriers[place.offset] = barrier;
}

void mbarrier_init_fence(void*) {
    const ClusterBarrier& cluster = self->cta->cluster->barrier;
    const auto mine = cluster.arrivals.find(self);
    const bool arrived = mine != cluster.arrivals.end() && mine->second == cluster.phase;
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
    join(self->warp->clocks, barrier.done);
}

void wait_for_previous_grid(void*) { self->waited = self->cta->waited = true; }

void launch_next_grid(void*) {}

void load_shared(void* out, Address source, unsigned bytes, void* here) {
    const Place place = resolve(source, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "reads another CTA's shared memory");
    check_read(place.cta, place.offset, bytes, here);
    memcpy(out, place.cta->smem.data() + place.offset, bytes);
}

void store_shared(Address target, const void* value, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "a plain store to another CTA's shared memory");
    write_shared(place.cta, place.offset, bytes, here);
    memcpy(place.cta->smem.data() + place.offset, value, bytes);
}

void load_global(void* out, const void* source, unsigned bytes, void* here) {
    if (reinterpret_cast<uintptr_t>(source) % bytes) fault(here, nullptr, "reads %u bytes at a misaligned address", bytes);
    check_global(source, bytes, false, true, here);
    memcpy(out, source, bytes);
}

void async_load(Address target, const void* source, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    check_global(source, bytes, false, true, here);
    check_write(place.cta, place.offset, bytes, self->warp, here);
    Copy copy = make_copy(place, bytes, here);
    copy.source = static_cast<const uint8_t*>(source);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, here);  // from now on nobody may read
    self->groups.back().push_back(copy);
}

void async_commit() { self->groups.emplace_back(); }

void async_wait(int groups, void*) {
    const int closed = static_cast<int>(self->groups.size()) - 1;
    for (int i = 0; i < closed - groups; ++i) {
        auto& group = self->groups[i];
        std::shuffle(group.begin(), group.end(), rng);
        for (const Copy& copy : group) {
            finish(copy);
            Clock& seen = self->warp->clocks[copy.agent];
            seen = std::max(seen, copy.clock);
        }
        group.clear();
    }
}

void bulk_load(Address target, const void* source, unsigned bytes, Address barrier, void* here) {
    if (bytes % 16 || reinterpret_cast<uintptr_t>(source) % 16 || target % 16)
        fault(here, nullptr, "a bulk copy of %u bytes: sizes and addresses are multiples of 16", bytes);
    check_global(source, bytes, false, true, here);
    const uint32_t rank = (target >> 24) - 1, offset = target & 0xFFFFFF;
    auto& ctas = self->cta->cluster->ctas;
    if (rank >= ctas.size() || offset + bytes > launch->smem)
        fault(here, nullptr, "a bulk copy of %u bytes to %u of shared memory, which has %u", bytes, offset, launch->smem);
    Copy copy = make_copy({ctas[rank].get(), offset}, bytes, here);
    copy.source = static_cast<const uint8_t*>(source);
    issue(copy, barrier, here);
}

// Each 32-bit word travels alone; `everywhere`: `target` is a multicast address.
void store_mailbox(void* target, const void* value, unsigned bytes, bool everywhere, void* here) {
    const Launch* mine = self->cta->cluster->grid->launch;
    if (!self->waited && !mine->late) fault(here, nullptr, "writes a mailbox before it waited for the previous grid");
    const int copies = everywhere ? mine->num_mailboxes : 1;
    for (int i = 0; i < copies; ++i) {
        auto* place = static_cast<uint8_t*>(target);
        if (everywhere) place = mine->mailboxes[i] + (place - mine->multicast);
        for (unsigned at = 0; at < bytes; at += 4) {
            Copy copy{};
            copy.word = place + at;
            copy.here = here;
            memcpy(copy.value, static_cast<const uint8_t*>(value) + at, 4);
            if (is_sentinel(word_at(copy.value)) && word_at(copy.value) == word_at(copy.word))
                fault(here, nullptr, "publishes the sentinel");
            bool known = false;
            for (const Grid& grid : grids)
                for (int j = 0; j < grid.launch->num_buffers; ++j) {
                    const Buffer& b = grid.launch->buffers[j];
                    known |= b.kind == kStepOut && copy.word >= b.base && copy.word + 4 <= b.base + b.bytes;
                }
            if (!known) fault(here, nullptr, "writes a mailbox outside of every rank's");
            pending.push_back(copy);
        }
    }
}

void wait_for_words(void* out, const void* place, unsigned bytes, uint32_t sentinel, void* here) {
    const auto* words = static_cast<const uint8_t*>(place);
    if (reinterpret_cast<uintptr_t>(place) % bytes) fault(here, nullptr, "polls %u bytes at a misaligned address", bytes);
    check_global(place, bytes, false, true, here);
    const auto* piece = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(place) & ~uintptr_t{15});
    for (unsigned i = 0; i < bytes; i += 4)
        while (word_at(words + i) == sentinel) {
            pollers.emplace(piece, self);
            block("a mailbox", here);
        }
    memcpy(out, place, bytes);
}

void store_remote(Address target, const void* value, unsigned bytes, Address barrier, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta->exited) fault(here, nullptr, "stores to shared memory of a CTA that has exited");
    Copy copy = make_copy(place, bytes, here);
    memcpy(copy.value, value, bytes);
    issue(copy, barrier, here);
}

}  // namespace machine

// What `-fsanitize=thread` makes the kernel's own code call at each plain access.
#define KGEN_HOOK(bytes)                                                                           \
    extern "C" void __tsan_read##bytes(void* p) { plain(p, bytes, false, __builtin_return_address(0)); } \
    extern "C" void __tsan_write##bytes(void* p) { plain(p, bytes, true, __builtin_return_address(0)); }
KGEN_HOOK(1)
KGEN_HOOK(2)
KGEN_HOOK(4)
KGEN_HOOK(8)
KGEN_HOOK(16)
#define KGEN_UNALIGNED_HOOK(bytes)                                                                 \
    extern "C" void __tsan_unaligned_read##bytes(void* p) { plain(p, bytes, false, __builtin_return_address(0)); } \
    extern "C" void __tsan_unaligned_write##bytes(void* p) { plain(p, bytes, true, __builtin_return_address(0)); }
KGEN_UNALIGNED_HOOK(2)
KGEN_UNALIGNED_HOOK(4)
KGEN_UNALIGNED_HOOK(8)
KGEN_UNALIGNED_HOOK(16)
extern "C" void __tsan_read_range(void* p, unsigned long n) { plain(p, static_cast<unsigned>(n), false, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* p, unsigned long n) { plain(p, static_cast<unsigned>(n), true, __builtin_return_address(0)); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
