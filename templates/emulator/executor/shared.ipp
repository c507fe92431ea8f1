// Shared memory: addresses, and whether what is read and written there is ordered. Part of machine.cpp.
#pragma once
#include "fibers.ipp"

namespace {

struct Place {
    Cta* cta;
    uint32_t offset;
};

Place resolve(Address address, unsigned bytes, void* here) {
    const uint32_t rank = (address >> 24) - 1, offset = address & 0xFFFFFF;
    auto& ctas = self->cta->cluster->ctas;
    if (rank >= ctas.size()) fault(here, nullptr, "address %#x is of no CTA of the cluster", address);
    Cta* cta = ctas[rank].get();
    if (offset + bytes > launch->smem)
        fault(here, nullptr, "%u bytes at %u of shared memory, which has %u", bytes, offset, launch->smem);
    if (offset % bytes && bytes <= 16) fault(here, nullptr, "%u bytes at %u of shared memory: misaligned", bytes, offset);
    return {cta, offset};
}

bool ordered(const Clocks& seen, size_t id, Clock clock) { return clock <= seen[id]; }

// `warp` reads: what is there was written, and before. `padding`: what nothing wrote may be read, it
// is NaN; tiles of fewer tokens than an MMA has rows do that.
void check_read(Cta* cta, uint32_t offset, unsigned bytes, void* here, bool padding = false) {
    Warp* warp = self->warp;
    const size_t per_word = cta->warps.size();
    for (uint32_t i = offset / 4; i <= (offset + bytes - 1) / 4; ++i) {
        Word& word = cta->words[i];
        if (word.writer < 0 && padding) continue;
        if (word.writer < 0) fault(here, nullptr, "reads shared memory at %u, which nothing wrote", 4 * i);
        if (word.writer != warp->id && !ordered(warp->clocks, word.writer, word.clock))
            fault(here, word.here, "reads shared memory at %u while another %s writes it: nothing orders the two", 4 * i,
                  word.writer < static_cast<int>(num_warps) ? "warp" : "warp's asynchronous store");
        const size_t slot = i * per_word + warp->id % per_word;
        cta->reads[slot] = warp->clocks[warp->id];
        cta->read_from[slot] = here;
    }
}

// `issuer` writes, itself or through its agent: what was there is read and written before.
void check_write(Cta* cta, uint32_t offset, unsigned bytes, Warp* issuer, void* here) {
    const size_t per_word = cta->warps.size();
    for (uint32_t i = offset / 4; i <= (offset + bytes - 1) / 4; ++i) {
        Word& word = cta->words[i];
        const bool plain = word.writer < static_cast<int>(num_warps);
        const size_t part = plain && word.writer >= 0 ? over(word.writer) : static_cast<size_t>(word.writer);
        if (word.writer >= 0 && word.writer != issuer->id && !ordered(issuer->clocks, part, word.clock))
            fault(here, word.here, "writes shared memory at %u, which another warp writes: nothing orders the two", 4 * i);
        for (size_t w = 0; w < per_word; ++w) {
            const Clock clock = cta->reads[i * per_word + w];
            const int reader = cta->warps[w]->id;
            if (clock && reader != issuer->id && !ordered(issuer->clocks, over(reader), clock))
                fault(here, cta->read_from[i * per_word + w],
                      "writes shared memory at %u, which another warp still reads: nothing orders the two", 4 * i);
        }
    }
}

void mark_write(Cta* cta, uint32_t offset, unsigned bytes, int writer, Clock clock, void* here) {
    const size_t per_word = cta->warps.size();
    for (uint32_t i = offset / 4; i <= (offset + bytes - 1) / 4; ++i) {
        cta->words[i] = {clock, static_cast<int16_t>(writer), here};
        std::fill_n(cta->reads.begin() + i * per_word, per_word, 0);
    }
}

void write_shared(Cta* cta, uint32_t offset, unsigned bytes, void* here) {
    const auto next = cta->mbarriers.upper_bound(offset + bytes - 1);
    if (next != cta->mbarriers.begin() && std::prev(next)->first + 8 > offset)
        fault(here, std::prev(next)->second.here, "writes shared memory at %u, over an mbarrier", offset);
    check_write(cta, offset, bytes, self->warp, here);
    mark_write(cta, offset, bytes, self->warp->id, self->warp->clocks[self->warp->id], here);
}

}  // namespace
