// Meetings of a warp's lanes: shuffles, ldmatrix, mma.sync. Part of machine.cpp.
#pragma once
#include "async.ipp"

namespace {

void meet(void* mine, void (*act)(void**), const char* what, void* here) {
    Warp* warp = self->warp;
    Meeting& meeting = warp->meeting;
    const int lane = lane_of(self), lanes = static_cast<int>(warp->lanes.size());
    if (meeting.arrived && meeting.act != act) fault(here, nullptr, "%s, while other lanes of its warp do something else", what);
    meeting.act = act;
    meeting.slots[lane] = mine;
    if (++meeting.arrived < lanes) return block(what, here);
    meeting.arrived = 0;
    act(meeting.slots);
    warp->ready |= ~0u >> (kLanes - lanes) & ~(1u << lane);
    list(warp);
}

float bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

struct MmaLane { float* d; const uint32_t* a; const uint32_t* b; };

using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));

void act_mma(void** slots) {
    uint32_t a[16][8];  // pairs along K
    Words b[8];
    Floats sums[16];
    for (int lane = 0; lane < kLanes; ++lane) {
        const auto* m = static_cast<MmaLane*>(slots[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = m->a[i];
        for (int i = 0; i < 2; ++i) b[t + 4 * i][g] = m->b[i];
        for (int i = 0; i < 4; ++i) sums[g + i / 2 * 8][2 * t + i % 2] = m->d[i];
    }
    for (int pair = 0; pair < 8; ++pair) {
        const auto low = reinterpret_cast<Floats>(b[pair] << 16), high = reinterpret_cast<Floats>(b[pair] & 0xFFFF0000u);
        for (int row = 0; row < 16; ++row) {
            sums[row] += bf16(a[row][pair]) * low;
            sums[row] += std::bit_cast<float>(a[row][pair] & 0xFFFF0000u) * high;
        }
    }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i)
            static_cast<MmaLane*>(slots[lane])->d[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

struct ShuffleLane { uint32_t value; int source; uint32_t result; };

void act_shuffle(void** slots) {
    for (int lane = 0; lane < kLanes; ++lane) {
        auto* mine = static_cast<ShuffleLane*>(slots[lane]);
        mine->result = static_cast<ShuffleLane*>(slots[mine->source])->value;
    }
}

struct MatrixLane {
    uint32_t* out;
    Place row;
    bool transposed;
    void* here;
};

void act_matrix(void** slots) {
    Fiber* last = self;
    const uint8_t* rows[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        const auto* mine = static_cast<MatrixLane*>(slots[lane]);
        self = last->warp->lanes[lane];
        check_read(mine->row.cta, mine->row.offset, 16, mine->here, true);
        rows[lane] = mine->row.cta->smem + mine->row.offset;
    }
    self = last;
    for (int lane = 0; lane < kLanes; ++lane) {
        auto* mine = static_cast<MatrixLane*>(slots[lane]);
        for (int i = 0; i < 4; ++i) {
            uint16_t pair[2];
            for (int half = 0; half < 2; ++half) {
                const int row = mine->transposed ? lane % 4 * 2 + half : lane / 4;
                const int column = mine->transposed ? lane / 4 : lane % 4 * 2 + half;
                memcpy(&pair[half], rows[8 * i + row] + 2 * column, 2);
            }
            mine->out[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        }
    }
}

void act_nothing(void**) {}

}  // namespace
