// Meetings of a warp's lanes: shuffles, ldmatrix, mma.sync. Part of machine.cpp.
#pragma once
#include "async.ipp"

namespace {

void meet(void* mine, void (*act)(void**), const char* what, void* here) {
    Warp* warp = self->warp;
    Meeting& meeting = warp->meeting;
    if (meeting.arrived && meeting.act != act) fault(here, nullptr, "%s, while other lanes of its warp do something else", what);
    meeting.act = act;
    meeting.slots[self->index.x % kLanes] = mine;
    if (++meeting.arrived < static_cast<int>(warp->lanes.size())) return block(what, here);
    meeting.arrived = 0;
    act(meeting.slots);
    for (Fiber* fiber : warp->lanes)
        if (fiber != self) make_ready(fiber);
}

float bf16(uint32_t bits) {
    bits <<= 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

struct MmaLane { float* d; const uint32_t* a; const uint32_t* b; };

void act_mma(void** slots) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < kLanes; ++lane) {
        const auto* m = static_cast<MmaLane*>(slots[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i)
            for (int half = 0; half < 2; ++half)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = bf16(m->a[i] >> 16 * half & 0xFFFF);
        for (int i = 0; i < 2; ++i)
            for (int half = 0; half < 2; ++half) b[2 * t + 8 * i + half][g] = bf16(m->b[i] >> 16 * half & 0xFFFF);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        auto* m = static_cast<MmaLane*>(slots[lane]);
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = m->d[i];
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            m->d[i] = sum;
        }
    }
}

struct ShuffleLane { uint32_t value; int source; uint32_t result; };

void act_shuffle(void** slots) {
    for (int lane = 0; lane < kLanes; ++lane) {
        auto* mine = static_cast<ShuffleLane*>(slots[lane]);
        mine->result = static_cast<ShuffleLane*>(slots[mine->source])->value;
    }
}

struct MatrixLane { uint32_t* out; const uint8_t* row; bool transposed; };

void act_matrix(void** slots) {
    for (int lane = 0; lane < kLanes; ++lane) {
        auto* mine = static_cast<MatrixLane*>(slots[lane]);
        for (int i = 0; i < 4; ++i) {
            uint16_t pair[2];
            for (int half = 0; half < 2; ++half) {
                const int row = mine->transposed ? lane % 4 * 2 + half : lane / 4;
                const int column = mine->transposed ? lane / 4 : lane % 4 * 2 + half;
                memcpy(&pair[half], static_cast<MatrixLane*>(slots[8 * i + row])->row + 2 * column, 2);
            }
            mine->out[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        }
    }
}

void act_nothing(void**) {}

}  // namespace
