// Asynchronous work: copies on their way, mbarriers that count them, mailboxes. Part of machine.cpp.
#pragma once
#include "global.ipp"

namespace {

void complete_mbarrier(Mbarrier& barrier) {
    if (barrier.pending || barrier.tx) return;
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.done = barrier.clocks;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

uint32_t word_at(const uint8_t* place) {
    uint32_t bits;
    memcpy(&bits, place, 4);
    return bits;
}

bool is_sentinel(uint32_t word) { return word == 0xFFFFFFFFu || word == 0x80000000u; }

// A word of a mailbox comes; those who wait for its 16 bytes look again.
void deliver(const Copy& copy) {
    if (!is_sentinel(word_at(copy.word))) return lost(copy.here, nullptr, "a mailbox gets a word twice before it is refilled");
    memcpy(copy.word, copy.value, 4);
    const auto* piece = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(copy.word) & ~uintptr_t{15});
    const auto range = pollers.equal_range(piece);
    for (auto waiting = range.first; waiting != range.second; ++waiting) make_ready(waiting->second);
    pollers.erase(range.first, range.second);
}

void finish(const Copy& copy) {
    if (!copy.target) return deliver(copy);
    const Index& b = copy.target->block;
    if (copy.target->exited)
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): %u bytes arrive in its shared memory at %u after it has exited", b.x,
                    b.y, b.z, copy.bytes, copy.offset);
    const uint8_t* source = copy.source ? copy.source : copy.value;
    memcpy(copy.target->smem.data() + copy.offset, source, copy.bytes);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, copy.here);
    if (copy.barrier == 0xFFFFFFFF) return;
    auto found = copy.target->mbarriers.find(copy.barrier);
    if (found == copy.target->mbarriers.end())
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): bytes arrive for the mbarrier at %u, which is not initialised", b.x,
                    b.y, b.z, copy.barrier);
    Mbarrier& barrier = found->second;
    barrier.tx -= static_cast<int>(copy.bytes);
    if (barrier.tx < -kMaxTx || (barrier.tx < 0 && !barrier.pending))
        return lost(copy.here, barrier.here, "CTA (%u, %u, %u): the mbarrier at %u gets more bytes than it expects", b.x, b.y, b.z,
                    copy.barrier);
    Clocks clocks(kParts * num_warps);
    clocks[copy.agent] = copy.clock;
    std::copy(copy.over.begin(), copy.over.end(), clocks.begin() + static_cast<long>(over(0)));
    join(barrier.clocks, clocks);
    complete_mbarrier(barrier);
}

// The running thread may use a barrier: what initialised it came before.
void check_made(const Mbarrier& barrier, const Cta* cta, void* here) {
    const bool told = barrier.fenced && self->phases >= barrier.since;
    if (cta != self->cta && !barrier.fenced)
        fault(here, barrier.here, "uses a peer's mbarrier whose initialisation no fence made visible");
    if (cta != self->cta && !told)
        fault(here, barrier.here, "uses a peer's mbarrier, and no cluster barrier came after its initialisation");
    if (!told && barrier.maker != self->warp->id && !ordered(self->warp->clocks, barrier.maker, barrier.made))
        fault(here, barrier.here, "uses an mbarrier that another warp initialises: nothing orders the two");
}

Copy make_copy(Place place, unsigned bytes, void* here) {
    Warp* warp = self->warp;
    Copy copy{};
    copy.target = place.cta;
    copy.offset = place.offset;
    copy.bytes = bytes;
    copy.barrier = 0xFFFFFFFF;
    copy.agent = agent_of(warp);
    copy.clock = ++warp->agent_clock;
    copy.here = here;
    return copy;
}

void issue(Copy copy, Address barrier, void* here) {
    const Place place = resolve(barrier, 8, here);
    if (place.cta != copy.target) fault(here, nullptr, "counts on an mbarrier of another CTA than it writes to");
    copy.barrier = place.offset;
    const auto found = place.cta->mbarriers.find(place.offset);
    if (found == place.cta->mbarriers.end())
        fault(here, nullptr, "asynchronous bytes for the mbarrier at %u, which is not initialised", place.offset);
    check_made(found->second, place.cta, here);
    if (!found->second.fenced) fault(here, found->second.here, "asynchronous bytes for an mbarrier whose initialisation no fence made visible");
    check_write(copy.target, copy.offset, copy.bytes, self->warp, here);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, here);  // from now on nobody may read
    const auto first = self->warp->clocks.begin() + static_cast<long>(over(0));
    copy.over.assign(first, first + static_cast<long>(num_warps));
    pending.push_back(copy);
}

void finish_one() {
    const size_t i = draw(pending.size());
    const Copy copy = pending[i];
    pending[i] = pending.back();
    pending.pop_back();
    finish(copy);
}

Mbarrier& mbarrier_at(Address address, void* here) {
    const Place place = resolve(address, 8, here);
    auto found = place.cta->mbarriers.find(place.offset);
    if (found == place.cta->mbarriers.end()) fault(here, nullptr, "the mbarrier at %u is not initialised", place.offset);
    Mbarrier& barrier = found->second;
    if (place.cta != self->cta && place.cta->exited) fault(here, nullptr, "arrives on an mbarrier of a CTA that has exited");
    check_made(barrier, place.cta, here);
    return barrier;
}

void arrive(Address address, uint32_t bytes, void* here) {
    Mbarrier& barrier = mbarrier_at(address, here);
    if (!barrier.pending) fault(here, barrier.here, "arrives on a full mbarrier: it takes %d arrivals", barrier.count);
    barrier.tx += static_cast<int>(bytes);
    --barrier.pending;
    settle(self->warp);
    join(barrier.clocks, self->warp->clocks);
    tick(self->warp);
    if (!barrier.pending && barrier.tx < 0) fault(here, barrier.here, "the mbarrier got more bytes than it expects");
    complete_mbarrier(barrier);
}

}  // namespace
