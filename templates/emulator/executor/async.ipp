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

const uint8_t* piece_of(const void* place) { return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(place) & ~uintptr_t{15}); }

// A word of a mailbox comes; those who wait for its 16 bytes look again.
void deliver(const Copy& copy) {
    if (!is_sentinel(word_at(copy.word))) return lost(copy.here, nullptr, "a mailbox gets a word twice before it is refilled");
    memcpy(copy.word, copy.value, 4);
    const auto range = pollers.equal_range(piece_of(copy.word));
    for (auto waiting = range.first; waiting != range.second; ++waiting) make_ready(waiting->second);
    pollers.erase(range.first, range.second);
}

// What the bytes of `copy` bring to the mbarrier that counts them.
void count_bytes(const Copy& copy) {
    const Index& b = copy.target->block;
    const auto found = copy.target->mbarriers.find(copy.barrier);
    if (found == copy.target->mbarriers.end())
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): bytes arrive for the mbarrier at %u, which is not initialised", b.x,
                    b.y, b.z, copy.barrier);
    Mbarrier& barrier = found->second;
    barrier.tx -= static_cast<int>(copy.bytes);
    if (barrier.tx < -kMaxTx || (barrier.tx < 0 && !barrier.pending))
        return lost(copy.here, barrier.here, "CTA (%u, %u, %u): the mbarrier at %u gets more bytes than it expects", b.x, b.y, b.z,
                    copy.barrier);
    Clock& seen = barrier.clocks[copy.agent];
    seen = std::max(seen, copy.clock);
    if (barrier.joined != copy.over) join(barrier.clocks.data() + over(0), copy.over->data(), num_warps);
    barrier.joined = copy.over;
    complete_mbarrier(barrier);
}

void finish(const Copy& copy) {
    if (!copy.target) return deliver(copy);
    const Index& b = copy.target->block;
    if (copy.target->exited)
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): %u bytes arrive in its shared memory at %u after it has exited", b.x,
                    b.y, b.z, copy.bytes, copy.offset);
    memcpy(copy.target->smem + copy.offset, copy.source ? copy.source : copy.value, copy.bytes);
    if (copy.barrier != kNoBarrier) count_bytes(copy);
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

Copy make_copy(Place place, const void* source, unsigned bytes, void* here) {
    Warp* warp = self->warp;
    Copy copy{};
    copy.target = place.cta;
    copy.offset = place.offset;
    copy.bytes = bytes;
    copy.source = static_cast<const uint8_t*>(source);
    copy.barrier = kNoBarrier;
    copy.agent = agent_of(warp);
    copy.clock = ++warp->agent_clock;
    copy.here = here;
    return copy;
}

// From now on, and until someone has waited for it, nobody may touch what `copy` writes.
void reserve(const Copy& copy) {
    check_write(copy.target, copy.offset, copy.bytes, self->warp, copy.here);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, copy.here);
}

void issue(Copy copy, Address barrier) {
    void* here = copy.here;
    const Place place = resolve(barrier, 8, here);
    if (place.cta != copy.target) fault(here, nullptr, "counts on an mbarrier of another CTA than it writes to");
    if (place.cta->exited) fault(here, nullptr, "stores to shared memory of a CTA that has exited");
    copy.barrier = place.offset;
    const auto found = place.cta->mbarriers.find(place.offset);
    if (found == place.cta->mbarriers.end())
        fault(here, nullptr, "asynchronous bytes for the mbarrier at %u, which is not initialised", place.offset);
    check_made(found->second, place.cta, here);
    if (!found->second.fenced) fault(here, found->second.here, "asynchronous bytes for an mbarrier whose initialisation no fence made visible");
    reserve(copy);
    copy.over = keep_over(self->warp);
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

// The image among all ranks' outputs that a peer may write these bytes of.
bool is_mailbox(uintptr_t at, unsigned bytes) {
    for (const Grid& grid : grids)
        for (const Image& image : grid.images) {
            const uintptr_t base = reinterpret_cast<uintptr_t>(image.base);
            uint64_t start;
            if (image.written() && at - base < image.array->span && find_run(*image.array, at - base, start) &&
                bytes <= base + start + image.array->run - at)
                return true;
        }
    return false;
}

// A store that a peer polls for: each 32-bit word travels alone.
void send_words(uint8_t* place, const void* value, unsigned bytes, void* here) {
    if (!is_mailbox(reinterpret_cast<uintptr_t>(place), bytes))
        fault(here, nullptr, "writes %u bytes of a mailbox outside of every rank's: %s", bytes,
              nearest(reinterpret_cast<uintptr_t>(place), bytes).c_str());
    for (unsigned at = 0; at < bytes; at += 4) {
        Copy copy{};
        copy.word = place + at;
        copy.here = here;
        memcpy(copy.value, static_cast<const uint8_t*>(value) + at, 4);
        if (is_sentinel(word_at(copy.value)) && word_at(copy.value) == word_at(copy.word))
            fault(here, nullptr, "publishes the sentinel");
        pending.push_back(copy);
    }
}

}  // namespace
