// Images: each array as the kernel sees it, between guard pages and far from all others. What a page holds
// is copied from the caller's memory when it is touched first; what was written goes back after the
// run. Part of machine.cpp.
#pragma once
#include "state.ipp"

#include <sys/mman.h>

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 1 << 20;   // on either side
constexpr size_t kChunk = 4 * kPage;  // what is copied at a time
constexpr uintptr_t kFirstCell = uintptr_t{1} << 44, kCell = uintptr_t{1} << 38;  // addresses, one image a cell

struct NoSpace {};

// Memory between guard pages; `hint`: where to, if there is room.
uint8_t* map_guarded(size_t bytes, int protection, uintptr_t hint = 0) {
    const size_t all = bytes + 2 * kGuard;
    void* made = mmap(reinterpret_cast<void*>(hint), all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) throw NoSpace();
    uint8_t* body = static_cast<uint8_t*>(made) + kGuard;
    if (protection != PROT_NONE && mprotect(body, bytes, protection)) throw NoSpace();
    return body;
}

void unmap_guarded(uint8_t* body, size_t bytes) {
    if (body) munmap(body - kGuard, bytes + 2 * kGuard);
}

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Image make_image(const Array& array, size_t cell) {
    const size_t within = reinterpret_cast<uintptr_t>(array.home) % kPage;
    Image image;
    image.array = &array;
    image.bytes = whole_pages(within + array.span);
    image.body = map_guarded(image.bytes, PROT_NONE, kFirstCell + cell * kCell + draw(1 << 20) * kPage);
    image.base = image.body + within;
    image.chunks.resize((image.bytes + kChunk - 1) / kChunk);
    return image;
}

// Call act(start, bytes) for each part of a run of `array` in its bytes [low, high).
template <class Act>
void each_run(const Array& array, uint64_t low, uint64_t high, Act act, int level = 0, uint64_t start = 0) {
    if (level == array.num_levels || level == kLevels) {
        const uint64_t from = std::max(start, low), to = std::min(start + array.run, high);
        if (from < to) act(from, to - from);
        return;
    }
    const Level& items = array.levels[level];
    for (uint64_t i = low > start ? (low - start) / items.stride : 0; i < items.extent && start + i * items.stride < high; ++i)
        each_run(array, low, high, act, level + 1, start + i * items.stride);
}

// The same for a chunk of the image.
template <class Act>
void each_run_of_chunk(const Image& image, size_t chunk, Act act) {
    const uint8_t* start = image.body + chunk * kChunk;
    const uint64_t low = start > image.base ? start - image.base : 0;
    const auto high = static_cast<uint64_t>(std::min(start + kChunk, static_cast<const uint8_t*>(image.body) + image.bytes) - image.base);
    each_run(*image.array, low, high, act);
}

// What the kernel may use in the place of an address in the caller's memory.
uint64_t moved(uint64_t address) {
    for (const Grid& grid : grids)
        for (const Image& image : grid.images)
            if (address - reinterpret_cast<uintptr_t>(image.array->home) < image.array->span)
                return address - reinterpret_cast<uintptr_t>(image.array->home) + reinterpret_cast<uintptr_t>(image.base);
    return address;
}

void copy_in(const Image& image, uint64_t start, uint64_t bytes) {
    memcpy(image.base + start, image.array->home + start, bytes);
    if (!image.array->addresses) return;
    auto* entries = reinterpret_cast<uint64_t*>(image.base + start);
    for (uint64_t i = 0; i < bytes / 8; ++i) entries[i] = moved(entries[i]);
}

// A page at `at` is touched for the first time: its chunk comes, gaps are poison. False if it is here already.
bool fill(Image& image, const uint8_t* at) {
    const size_t chunk = static_cast<size_t>(at - image.body) / kChunk;
    if (image.chunks[chunk].filled) return false;
    image.chunks[chunk].filled = true;
    uint8_t* start = image.body + chunk * kChunk;
    const size_t bytes = std::min(kChunk, image.bytes - chunk * kChunk);
    mprotect(start, bytes, PROT_READ | PROT_WRITE);
    memset(start, 0xFF, bytes);
    each_run_of_chunk(image, chunk, [&image](uint64_t from, uint64_t size) { copy_in(image, from, size); });
    if (!image.written()) mprotect(start, bytes, PROT_READ);
    return true;
}

bool fill_at(const void* address) {
    const auto* at = static_cast<const uint8_t*>(address);
    for (Grid& grid : grids)
        for (Image& image : grid.images)
            if (at >= image.body && at < image.body + image.bytes) return fill(image, at);
    return false;
}

void copy_back(const Image& image) {
    for (size_t chunk = 0; chunk < image.chunks.size(); ++chunk)
        if (image.chunks[chunk].filled)
            each_run_of_chunk(image, chunk, [&image](uint64_t from, uint64_t size) {
                memcpy(image.array->home + from, image.base + from, size);
            });
}

// The grid's arrays and parameters, whose pointers are those of the images.
void map_grid(Grid& grid, size_t first_cell) {
    const Launch& mine = *grid.launch;
    for (int i = 0; i < mine.num_arrays; ++i) grid.images.push_back(make_image(mine.arrays[i], first_cell + i));
    grid.params = map_guarded(whole_pages(mine.params_bytes), PROT_READ | PROT_WRITE);
    memcpy(grid.params, mine.params, mine.params_bytes);
    for (const Image& image : grid.images)
        if (image.array->place >= 0) memcpy(grid.params + image.array->place, &image.base, sizeof image.base);
    mprotect(grid.params, whole_pages(mine.params_bytes), PROT_READ);
}

void unmap_grid(Grid& grid) {
    for (const Image& image : grid.images) {
        if (image.written() && !failed) copy_back(image);
        unmap_guarded(image.body, image.bytes);
    }
    unmap_guarded(grid.params, whole_pages(grid.launch->params_bytes));
}

}  // namespace
