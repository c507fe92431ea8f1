// Global memory: the arrays of a launch, and who may touch them when. Part of machine.cpp.
#pragma once
#include "shared.ipp"

namespace {

const Buffer* buffer_of(const void* address, unsigned bytes) {
    const auto* p = static_cast<const uint8_t*>(address);
    const Launch* mine = self->cta->cluster->grid->launch;
    for (int i = 0; i < mine->num_buffers; ++i) {
        const Buffer& b = mine->buffers[i];
        if (p >= b.base && p + bytes <= b.base + b.bytes) return &b;
    }
    return nullptr;
}

void check_global(const void* address, unsigned bytes, bool writes, bool known, void* here) {
    const Buffer* buffer = buffer_of(address, bytes);
    Grid* grid = self->cta->cluster->grid;
    const Launch* mine = grid->launch;
    if (!buffer) {
        const auto* p = static_cast<const uint8_t*>(address);
        const Buffer* nearest = nullptr;
        size_t least = known ? SIZE_MAX : kNear;
        for (int i = 0; i < mine->num_buffers; ++i) {
            const Buffer& b = mine->buffers[i];
            const size_t away = p < b.base ? b.base - p : p + bytes - (b.base + b.bytes);
            if (away < least) nearest = &b, least = away;
        }
        if (nearest)
            fault(here, nullptr, "%s %u bytes outside of %s, %lld bytes from its start", writes ? "writes" : "reads", bytes,
                  nearest->name, static_cast<long long>(p - nearest->base));
        return;
    }
    if (writes && buffer->kind != kStepOut) fault(here, nullptr, "writes %s, an input", buffer->name);
    if (buffer->kind != kConstant && !self->waited && !mine->late)
        fault(here, nullptr, "%s %s before it waited for the previous grid", writes ? "writes" : "reads", buffer->name);
    if (!writes) return;
    auto& marks = grid->writers[buffer - mine->buffers];
    const uint32_t id = self->cta->cluster->number * static_cast<uint32_t>(num_warps) + self->warp->id + 1;
    const size_t start = static_cast<const uint8_t*>(address) - buffer->base;
    for (size_t i = start; i < start + bytes; ++i) {
        if (marks[i] && marks[i] != id)
            fault(here, nullptr, "writes byte %zu of %s, which another warp writes too", i, buffer->name);
        marks[i] = id;
    }
}

// Plain accesses of the kernel's own code come from the compiler's instrumentation.
void plain(const void* address, unsigned bytes, bool writes, void* here) {
    if (!self) return;
    const auto* p = static_cast<const uint8_t*>(address);
    if (p >= self->stack && p < self->stack + kStack) return;
    const Launch* mine = self->cta->cluster->grid->launch;
    const auto* params = static_cast<const uint8_t*>(mine->params);
    if (p >= params && p < params + mine->params_bytes) return;
    Cta* cta = self->cta;
    const auto* base = cta->smem.data();
    if (p >= base && p < base + cta->smem.size()) {
        const auto offset = static_cast<uint32_t>(p - base);
        if (writes) write_shared(cta, offset, bytes, here);
        else check_read(cta, offset, bytes, here);
        return;
    }
    check_global(address, bytes, writes, false, here);
}

}  // namespace
