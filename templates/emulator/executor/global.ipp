// Global memory: what the kernel may touch, and who may touch it when. Part of machine.cpp.
#pragma once
#include "shared.ipp"

#include <dlfcn.h>
#include <link.h>

namespace {

struct Segment { uintptr_t start, end; };
std::vector<Segment> constants;  // of the kernel's library: code and constant data

bool of_library(uintptr_t at) {
    for (const Segment& segment : constants)
        if (at >= segment.start && at < segment.end) return true;
    return false;
}

void find_constants() {
    constants.clear();
    const auto look = [](dl_phdr_info* info, size_t, void*) {
        std::vector<Segment> found;
        bool ours = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD || part.p_flags & PF_W) continue;
            found.push_back({info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz});
            const auto entry = reinterpret_cast<uintptr_t>(launch->entry);
            ours |= entry >= found.back().start && entry < found.back().end;
        }
        if (ours) constants = found;
        return static_cast<int>(ours);
    };
    dl_iterate_phdr(look, nullptr);
}

// Where the run starts that holds byte `offset` of `array`, if one does.
bool find_run(const Array& array, uint64_t offset, uint64_t& start) {
    start = 0;
    for (int i = 0; i < array.num_levels; ++i) {
        const Level& items = array.levels[i];
        const uint64_t item = (offset - start) / items.stride;
        if (item >= items.extent) return false;
        start += item * items.stride;
    }
    return offset - start < array.run;
}

// The image whose array has all of the bytes; null: none.
Image* image_of(Grid& grid, uintptr_t at, unsigned bytes) {
    Hit& hit = self->hit;
    if (at >= hit.start && at < hit.end && bytes <= hit.end - at) return hit.image;
    for (Image& image : grid.images) {
        const uintptr_t base = reinterpret_cast<uintptr_t>(image.base);
        uint64_t start;
        if (at - base >= image.array->span || !find_run(*image.array, at - base, start)) continue;
        if (bytes > base + start + image.array->run - at) return nullptr;
        hit = {base + start, base + start + image.array->run, &image};
        return &image;
    }
    return nullptr;
}

struct Near {
    std::string text;
    uint64_t away = UINT64_MAX;

    void see(const std::string& name, uintptr_t base, uint64_t span, uintptr_t at, unsigned bytes) {
        const bool before = at < base;
        const uint64_t distance = before ? base - at : at - (base + span);
        if (at - base < span) {
            away = 0;
            text = std::string("at byte ") + std::to_string(at - base) + " of " + name;
            text += at + bytes > base + span ? ", over its end" : ", between its items";
        } else if (distance < away) {
            away = distance;
            text = std::to_string(distance) + (before ? " bytes before the start of " : " bytes after the end of ") + name;
        }
    }
};

// The array, or shared memory, that is nearest to an address, and how far that is.
std::string nearest(uintptr_t at, unsigned bytes) {
    Near near;
    for (const Grid& grid : grids) {
        const std::string whose = grids.size() > 1 ? " of rank " + std::to_string(grid.launch->rank) : "";
        for (const Image& image : grid.images)
            near.see(image.array->name + whose, reinterpret_cast<uintptr_t>(image.base), image.array->span, at, bytes);
    }
    near.see("shared memory", reinterpret_cast<uintptr_t>(self->cta->smem), launch->smem, at, bytes);
    return near.text;
}

[[noreturn]] void outside(const char* does, uintptr_t at, unsigned bytes, void* here) {
    fault(here, nullptr, "%s %u bytes outside of every array: %s", does, bytes, nearest(at, bytes).c_str());
}

// Note that the running warp writes these bytes.
void mark_global(Image& image, uintptr_t at, unsigned bytes, uint32_t id, void* here) {
    for (uintptr_t i = at; i < at + bytes; ++i) {
        const size_t offset = i - reinterpret_cast<uintptr_t>(image.body);
        auto& writers = image.chunks[offset / kChunk].writers;
        if (!writers) writers = std::make_unique<uint32_t[]>(kChunk);
        uint32_t& writer = writers[offset % kChunk];
        if (writer && writer != id)
            fault(here, nullptr, "writes byte %zu of %s, which another warp writes too",
                  static_cast<size_t>(i - reinterpret_cast<uintptr_t>(image.base)), image.array->name);
        writer = id;
    }
}

constexpr uint32_t kAtomic = 0xFFFFFFFF;  // in the place of a warp's number: any of them, atomically

void check_global(const void* address, unsigned bytes, bool writes, void* here, bool atomic = false) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    Grid& grid = *self->cta->cluster->grid;
    Image* image = image_of(grid, at, bytes);
    if (!image) outside(writes ? "writes" : "reads", at, bytes, here);
    const Array& array = *image->array;
    if (writes && !image->written()) fault(here, nullptr, "writes %s, an input", array.name);
    if (array.kind != kConstant && !self->waited && !grid.launch->late)
        fault(here, nullptr, "%s %s before it waited for the previous grid", writes ? "writes" : "reads", array.name);
    const uint32_t id = self->cta->cluster->number * static_cast<uint32_t>(num_warps) + self->warp->id + 1;
    if (writes) mark_global(*image, at, bytes, atomic ? kAtomic : id, here);
}

bool is_parameter(uintptr_t at, unsigned bytes) {
    const Grid& grid = *self->cta->cluster->grid;
    const uint64_t size = grid.launch->params_bytes, offset = at - reinterpret_cast<uintptr_t>(grid.params);
    return offset < size && bytes <= size - offset;
}

// What the compiler's instrumentation tells of an access by the kernel's own code.
void plain_elsewhere(uintptr_t at, unsigned bytes, bool writes, bool aligned, void* here) {
    if (aligned && at % bytes) fault(here, nullptr, "%s %u bytes at a misaligned address", writes ? "writes" : "reads", bytes);
    const uint64_t offset = at - reinterpret_cast<uintptr_t>(self->cta->smem);
    if (offset < launch->smem && bytes <= launch->smem - offset) {
        if (writes) return write_shared(self->cta, static_cast<uint32_t>(offset), bytes, here);
        return check_read(self->cta, static_cast<uint32_t>(offset), bytes, here);
    }
    if (!writes && (is_parameter(at, bytes) || of_library(at))) return;
    check_global(reinterpret_cast<const void*>(at), bytes, writes, here);
}

inline void plain(const void* address, unsigned bytes, bool writes, bool aligned, void* here) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at - reinterpret_cast<uintptr_t>(self->stack) > kStack - bytes) plain_elsewhere(at, bytes, writes, aligned, here);
}

}  // namespace
