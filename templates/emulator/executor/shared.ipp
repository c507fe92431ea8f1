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
    if (uint64_t{offset} + bytes > launch->smem)
        fault(here, nullptr, "%u bytes at %u of shared memory, which has %u", bytes, offset, launch->smem);
    if (offset % bytes && bytes <= 16) fault(here, nullptr, "%u bytes at %u of shared memory: misaligned", bytes, offset);
    return {ctas[rank].get(), offset};
}

bool ordered(const Clocks& seen, size_t id, Clock clock) { return clock <= seen[id]; }

// What is tracked: granules, or the words of one that was touched in part.
constexpr uint32_t kGranule = 16, kWord = 4;

void split(Cta* cta, uint32_t granule) {
    Unit& whole = cta->granules.at[granule];
    for (uint32_t word = granule * kGranule / kWord; word < (granule + 1) * kGranule / kWord; ++word) {
        cta->words.at[word] = whole;
        for (uint32_t left = whole.readers; left; left &= left - 1) {
            const int warp = std::countr_zero(left);
            cta->words.read(warp, word) = cta->granules.read(warp, granule);
        }
    }
    whole.writer = kSplit;
}

// Call act(units, unit, offset) for each unit of these bytes.
template <class Act>
void each_unit(Cta* cta, uint32_t offset, unsigned bytes, Act act) {
    const uint32_t end = offset + bytes;
    for (uint32_t granule = offset / kGranule; granule * kGranule < end; ++granule) {
        const uint32_t low = std::max(offset, granule * kGranule), high = std::min(end, (granule + 1) * kGranule);
        if (cta->granules.at[granule].writer != kSplit) {
            if (high - low == kGranule) {
                act(cta->granules, granule, low);
                continue;
            }
            split(cta, granule);
        }
        for (uint32_t word = low / kWord; word * kWord < high; ++word) act(cta->words, word, word * kWord);
    }
}

[[noreturn]] void wrong_read(const Unit& unit, uint32_t offset, void* here) {
    if (unit.writer == kNobody) fault(here, nullptr, "reads shared memory at %u, which nothing wrote", offset);
    if (unit.writer == kMbarrier) fault(here, place_of(unit.spot), "reads shared memory at %u, an mbarrier", offset);
    fault(here, place_of(unit.spot), "reads shared memory at %u while another %s writes it: nothing orders the two", offset,
          unit.writer < static_cast<int>(num_warps) ? "warp" : "warp's asynchronous store");
}

// The running warp reads: what is there was written, and before. `padding`: what nothing wrote may be
// read, it is NaN; tiles of fewer tokens than an MMA has rows do that.
void check_read(Cta* cta, uint32_t offset, unsigned bytes, void* here, bool padding = false) {
    const Warp* warp = self->warp;
    const Read read = {warp->clocks[warp->id], spot_of(here)};
    each_unit(cta, offset, bytes, [&](Units& units, uint32_t i, uint32_t at) {
        Unit& unit = units.at[i];
        if (unit.writer == kNobody && padding) return;
        if (unit.writer < 0 || (unit.writer != warp->id && !ordered(warp->clocks, unit.writer, unit.clock)))
            wrong_read(unit, at, here);
        unit.readers |= 1u << warp->index;
        units.read(warp->index, i) = read;
    });
}

// A read of the unit that `issuer` does not know to be over.
const Read* unfinished_read(Units& units, uint32_t i, const Cta* cta, const Warp* issuer) {
    for (uint32_t left = units.at[i].readers; left; left &= left - 1) {
        const int index = std::countr_zero(left);
        const Read& read = units.read(index, i);
        const int reader = cta->warps[index]->id;
        if (reader != issuer->id && !ordered(issuer->clocks, over(reader), read.clock)) return &read;
    }
    return nullptr;
}

// `issuer` writes, itself or through its agent: what was there is read and written before.
void check_write(Cta* cta, uint32_t offset, unsigned bytes, const Warp* issuer, void* here) {
    each_unit(cta, offset, bytes, [&](Units& units, uint32_t i, uint32_t at) {
        const Unit& unit = units.at[i];
        if (unit.writer == kMbarrier) fault(here, place_of(unit.spot), "writes shared memory at %u, over an mbarrier", at);
        if (unit.writer >= 0 && unit.writer != issuer->id) {
            const bool by_agent = unit.writer >= static_cast<int>(num_warps);
            if (!ordered(issuer->clocks, by_agent ? unit.writer : over(unit.writer), unit.clock))
                fault(here, place_of(unit.spot), "writes shared memory at %u, which another warp writes: nothing orders the two", at);
        }
        if (!unit.readers) return;
        if (const Read* read = unfinished_read(units, i, cta, issuer))
            fault(here, place_of(read->spot), "writes shared memory at %u, which another warp still reads: nothing orders the two", at);
    });
}

void mark_write(Cta* cta, uint32_t offset, unsigned bytes, int writer, Clock clock, void* here) {
    const Unit written = {clock, 0, spot_of(here), writer};
    for (uint32_t whole = (offset + kGranule - 1) / kGranule; (whole + 1) * kGranule <= offset + bytes; ++whole)
        cta->granules.at[whole] = written;  // no longer split
    each_unit(cta, offset, bytes, [&written](Units& units, uint32_t i, uint32_t) { units.at[i] = written; });
}

void write_shared(Cta* cta, uint32_t offset, unsigned bytes, void* here) {
    const Warp* warp = self->warp;
    check_write(cta, offset, bytes, warp, here);
    mark_write(cta, offset, bytes, warp->id, warp->clocks[warp->id], here);
}

}  // namespace
