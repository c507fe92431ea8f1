// Warpgroup MMAs: registers and shared memory that they use until their group is waited for. Part of machine.cpp.
//
// Each warp's 16 rows are a piece of work of their own, done at the wait. Until then its accumulators hold a NaN that
// nobody may change, A is compared with what it was, and B counts as being read.
#pragma once
#include "meetings.ipp"

namespace {

constexpr int kColumns = 48, kResults = kColumns / 2;  // of a lane: 16 x 48 values over 32 lanes
constexpr uint32_t kRunning = 0xFFC0DEAD;              // what accumulators hold meanwhile: a NaN
constexpr Clock kNeverOver = 0xFFFFFFFF;               // the clock of a read that goes on

using Results = float[kLanes][kResults];

struct WgmmaLane {
    float* d;
    const uint32_t* a;
    uint64_t b;
};

struct Wgmma {
    WgmmaLane lanes[kLanes];
    uint32_t a[kLanes][4];  // at the issue
    void* here;
};

struct Accumulators {
    Results values;
    int running = 0;  // wgmmas that add to them
};

// A warp's asynchronous MMAs.
struct Tensor {
    std::vector<Wgmma> running;
    std::vector<size_t> groups;  // how many each closed group has
    size_t open = 0;             // of the group that is not closed
    size_t issued = 0;
    bool fenced = false;
    std::map<float*, Accumulators> accumulators;  // by lane 0's
};

std::map<const Warp*, Tensor> tensors;
std::map<std::pair<const Cta*, int>, std::vector<uint64_t>> warpgroups;  // the descriptors that each has used

bool untouched(const float* d) {
    for (int i = 0; i < kResults; ++i)
        if (std::bit_cast<uint32_t>(d[i]) != kRunning) return false;
    return true;
}

// Where the 16 bytes of columns 8 * half.. of row `n` of B lie.
uint32_t row_of_b(uint64_t descriptor, int n, int half) {
    const uint32_t start = (descriptor & 0x3FFF) << 4, eight_rows = (descriptor >> 32 & 0x3FFF) << 4;
    const uint32_t at = start + n / 8 * eight_rows + n % 8 * 128 + 16 * half;
    return at ^ (at >> 7 & 7) << 4;
}

// This warp reads B from now on until `clock` says otherwise.
void mark_reads(Cta* cta, const Warp* warp, uint64_t b, Clock clock) {
    for (int piece = 0; piece < 2 * kColumns; ++piece)
        each_unit(cta, row_of_b(b, piece / 2, piece % 2), 16, [&](Units& units, uint32_t i, uint32_t) {
            units.at[i].readers |= 1u << warp->index;
            units.read(warp->index, i).clock = clock;
        });
}

void check_b(Cta* cta, const Warp* warp, uint64_t b, void* here) {
    if (b >> 62 != 1 || (b >> 49 & 7)) fault(here, nullptr, "a descriptor of another layout than the 128-byte swizzle");
    for (int piece = 0; piece < 2 * kColumns; ++piece) {
        const uint32_t offset = row_of_b(b, piece / 2, piece % 2);
        if (offset + 16 > launch->smem) fault(here, nullptr, "wgmma reads %u of shared memory, which has %u", offset, launch->smem);
        check_read(cta, offset, 16, here);
        each_unit(cta, offset, 16, [&](const Units& units, uint32_t i, uint32_t at) {
            const Unit& unit = units.at[i];
            if (!ordered(warp->clocks, shown(unit.writer), unit.clock))
                fault(here, place_of(unit.spot), "wgmma reads shared memory at %u, which no proxy fence has shown it", at);
        });
    }
}

// The warps of a warpgroup issue the same wgmmas.
void check_warpgroup(const Warp* warp, Tensor& tensor, uint64_t b, void* here) {
    const int group = warp->index / 4;
    auto& used = warpgroups[{warp->cta, group}];
    if (tensor.issued == used.size()) used.push_back(b);
    if (used[tensor.issued++] != b) fault(here, nullptr, "wgmma with another B than other warps of its warpgroup");
}

void issue_wgmma(WgmmaLane** lanes, void* here) {
    Warp* warp = self->warp;
    Tensor& tensor = tensors[warp];
    const uint64_t b = lanes[0]->b;
    if (!tensor.fenced) fault(here, nullptr, "wgmma whose registers no wgmma.fence has shown it");
    check_warpgroup(warp, tensor, b, here);
    check_b(warp->cta, warp, b, here);
    mark_reads(warp->cta, warp, b, kNeverOver);
    Accumulators& sums = tensor.accumulators[lanes[0]->d];
    Wgmma work;
    work.here = here;
    for (int lane = 0; lane < kLanes; ++lane) {
        work.lanes[lane] = *lanes[lane];
        memcpy(work.a[lane], lanes[lane]->a, sizeof work.a[lane]);
        float* d = lanes[lane]->d;
        if (sums.running && !untouched(d)) fault(here, tensor.running.back().here, "accumulators of a running wgmma were written");
        if (sums.running) continue;
        memcpy(sums.values[lane], d, sizeof sums.values[lane]);
        std::fill_n(d, kResults, std::bit_cast<float>(kRunning));
    }
    ++sums.running;
    ++tensor.open;
    tensor.running.push_back(work);
}

void add_product(const Wgmma& work, const Cta* cta, Results& sums) {
    float a[16][16], b[16][kColumns];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 8; ++i)
            a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] = bf16(work.a[lane][i / 2] >> i % 2 * 16 & 0xFFFF);
    for (int n = 0; n < kColumns; ++n)
        for (int k = 0; k < 16; ++k) {
            uint16_t bits;
            memcpy(&bits, cta->smem + row_of_b(work.lanes[0].b, n, k / 8) + k % 8 * 2, 2);
            b[k][n] = bf16(bits);
        }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < kResults; ++i) {
            const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            for (int k = 0; k < 16; ++k) sums[lane][i] += a[row][k] * b[k][column];
        }
}

// The oldest wgmma ends.
void finish_wgmma(Tensor& tensor, void* here) {
    const Wgmma work = tensor.running.front();
    Warp* warp = self->warp;
    tensor.running.erase(tensor.running.begin());
    const auto found = tensor.accumulators.find(work.lanes[0].d);
    Accumulators& sums = found->second;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (memcmp(work.a[lane], work.lanes[lane].a, sizeof work.a[lane]))
            fault(here, work.here, "registers of A were written before the wgmma that reads them was waited for");
        if (!untouched(work.lanes[lane].d)) fault(here, work.here, "accumulators of a running wgmma were written");
    }
    add_product(work, warp->cta, sums.values);
    mark_reads(warp->cta, warp, work.lanes[0].b, warp->clocks[warp->id]);
    for (const Wgmma& other : tensor.running) mark_reads(warp->cta, warp, other.lanes[0].b, kNeverOver);
    if (--sums.running) return;
    for (int lane = 0; lane < kLanes; ++lane) memcpy(work.lanes[lane].d, sums.values[lane], sizeof sums.values[lane]);
    tensor.accumulators.erase(found);
}

struct WgmmaCall {
    WgmmaLane lane;
    int groups;
    void* here;
};

void act_wgmma(void** slots) {
    WgmmaLane* lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = &static_cast<WgmmaCall*>(slots[i])->lane;
    issue_wgmma(lanes, static_cast<WgmmaCall*>(slots[0])->here);
}

void act_wgmma_fence(void**) { tensors[self->warp].fenced = true; }

void act_wgmma_commit(void**) {
    Tensor& tensor = tensors[self->warp];
    tensor.groups.push_back(tensor.open);
    tensor.open = 0;
    tensor.fenced = false;
}

void act_wgmma_wait(void** slots) {
    const auto* call = static_cast<WgmmaCall*>(slots[0]);
    Tensor& tensor = tensors[self->warp];
    while (static_cast<int>(tensor.groups.size()) > call->groups) {
        for (size_t i = 0; i < tensor.groups.front(); ++i) finish_wgmma(tensor, call->here);
        tensor.groups.erase(tensor.groups.begin());
    }
}

void check_wgmmas_over() {
    const auto found = tensors.find(self->warp);
    if (found != tensors.end() && !found->second.running.empty())
        fault(found->second.running.front().here, nullptr, "exits with a wgmma that it never waited for");
    if (self->warp->live == 1) tensors.erase(self->warp);
    if (self->cta->live == 1) std::erase_if(warpgroups, [](const auto& used) { return used.first.first == self->cta; });
}

}  // namespace

namespace machine {

void wgmma_fence(void* here) { meet(nullptr, act_wgmma_fence, "wgmma.fence", here); }

void wgmma_commit_group(void* here) { meet(nullptr, act_wgmma_commit, "wgmma.commit_group", here); }

void wgmma_wait_group(int groups, void* here) {
    WgmmaCall call = {{}, groups, here};
    meet(&call, act_wgmma_wait, "wgmma.wait_group", here);
}

void wgmma_m64n48k16(float* d, const uint32_t* a, uint64_t b, void* here) {
    WgmmaCall call = {{d, a, b}, 0, here};
    meet(&call, act_wgmma, "wgmma", here);
}

void wgmma_take(const float* d, void* here) {
    for (const Wgmma& work : tensors[self->warp].running)
        if (work.lanes[lane_of(self)].d == d)
            fault(here, work.here, "reads the accumulators of a wgmma that it has not waited for");
}

// What this warp knows to be written, the asynchronous proxy knows too.
void fence_proxy_async(void*) {
    Warp* warp = self->warp;
    for (size_t i = 0; i < 2 * num_warps; ++i) {
        Clock& seen = warp->clocks[shown(static_cast<int>(i))];
        seen = std::max(seen, warp->clocks[i]);
    }
    tick(warp);
}

}  // namespace machine
