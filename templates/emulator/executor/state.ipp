// What there is at a moment of a run, and how a fault ends it. Part of machine.cpp.
#pragma once
#include "launch.h"
#include "machine.h"
#include "switch.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using machine::Address;
using machine::Index;
using Clock = uint32_t;
using Clocks = std::vector<Clock>;
using Spot = int32_t;  // a place in the kernel's code, from its entry on

constexpr int kLanes = 32;
constexpr size_t kParts = 5;  // of a clock: machine.cpp
constexpr int kMaxTx = 1 << 20;

struct Cta;
struct Warp;

struct Chunk {
    bool filled = false;
    std::unique_ptr<uint32_t[]> writers;  // of each byte: 0, or the number of a warp in the grid, from 1
};

// An array as the kernel sees it: images.ipp.
struct Image {
    const Array* array = nullptr;
    uint8_t* base = nullptr;  // of the array: as far from its page's start as in the caller's memory
    uint8_t* body = nullptr;  // whole pages, guards around them
    size_t bytes = 0;
    std::vector<Chunk> chunks;

    bool written() const { return array->kind == kStepOut; }
};

// A rank's grid: its arrays and parameters as the kernel sees them.
struct Grid {
    Launch* launch = nullptr;
    std::vector<Image> images;
    uint8_t* params = nullptr;
};

struct Copy {  // asynchronous work on its way
    Cta* target;    // null: a word of a mailbox
    uint8_t* word;  // of it
    uint32_t offset, bytes;
    const uint8_t* source;  // null: `value` holds the bytes
    uint8_t value[16];
    uint32_t barrier;  // offset in the target; kNoBarrier: none
    int agent;
    Clock clock;
    void* here;
    const Clocks* over;  // accesses that were over at the issue
};
constexpr uint32_t kNoBarrier = 0xFFFFFFFF;

// Bytes that the thread found to be an array's, the last time that it looked.
struct Hit {
    uintptr_t start = 0, end = 0;
    Image* image = nullptr;
};

struct Fiber {
    uint8_t* stack = nullptr;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    Index index{};
    Hit hit;
    bool done = false, waited = false;
    uint32_t arrival = 0;  // the phase of the cluster barrier that it arrived at, from 1; 0: none
    uint32_t phases = 0;   // of the cluster barrier, that it waited for
    const char* blocked = nullptr;  // on what, the last time
    void* here = nullptr;
    std::vector<Copy> copies;      // of cp.async, not waited for
    std::vector<size_t> groups;    // where each closed group of them ends
};

struct Meeting {
    int arrived = 0;
    void* slots[kLanes];
    void (*act)(void**) = nullptr;
};

struct Warp {
    Cta* cta;
    int id;         // in the cluster
    int index = 0;  // in the CTA
    std::vector<Fiber*> lanes;
    void* sps[kLanes];  // where each goes on
    uint8_t* stacks = nullptr;
    uint32_t ready = 0;
    bool listed = false;
    int live = 0;
    Clocks clocks;
    const Clocks* over = nullptr;  // a copy of what of them tells of accesses that are over, while it holds
    const void* joined = nullptr;  // the mbarrier that it took clocks from last, and the phase
    uint32_t joined_phase = 0;
    Meeting meeting;
    Clock agent_clock = 0;
};

struct Barrier {
    int expected = 0;
    std::vector<Fiber*> waiting;
};

struct Mbarrier {
    int count = 0, pending = 0, tx = 0;
    uint32_t phase = 0;
    bool fenced = false;
    int maker = 0;  // the warp that initialised it, at its clock `made`
    Clock made = 0;
    uint32_t since = 0;  // phases of the cluster barrier after which the fence has told peers
    Clocks clocks, done;
    const Clocks* joined = nullptr;  // what copies brought last
    std::vector<Fiber*> waiting;
    void* here = nullptr;
};

// A unit of shared memory: who wrote it last, and which warps of the CTA have read it since.
struct Unit {
    Clock clock;
    uint32_t readers;
    Spot spot;
    int32_t writer;  // of the cluster's warps and agents, or one of these:
};
constexpr int kNobody = -1, kMbarrier = -2, kSplit = -3;

struct Read {
    Clock clock;
    Spot spot;
};

struct Units {
    std::vector<Unit> at;
    std::vector<Read> reads;  // [warp of the CTA][unit]; those of a unit's `readers` count

    void reset(size_t count, size_t warps) {
        at.assign(count, {0, 0, 0, kNobody});
        reads.resize(count * warps);
    }
    Read& read(size_t warp, uint32_t unit) { return reads[warp * at.size() + unit]; }
};

struct Cluster;

struct Cta {
    Cluster* cluster = nullptr;
    Index block{};
    int rank = 0, live = 0;
    bool exited = false, waited = false;
    uint8_t* smem = nullptr;
    Units granules, words;  // of 16 bytes; of 4, those of split granules
    std::vector<Warp*> warps;
    std::map<int, Barrier> barriers;
    std::map<uint32_t, Mbarrier> mbarriers;
};

struct ClusterBarrier {
    int arrived = 0;
    std::vector<Fiber*> waiting;
    uint32_t phase = 0;
};

struct Cluster {
    Grid* grid = nullptr;
    uint32_t number = 0;  // in its grid
    ClusterBarrier barrier;
    std::vector<std::unique_ptr<Cta>> ctas;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<std::unique_ptr<Fiber>> fibers;
};

Launch* launch;  // the shape of every rank's grid, and where the report goes
std::vector<Grid> grids;
std::vector<std::unique_ptr<Cluster>> resident;
size_t num_warps;  // of a cluster
std::vector<Warp*> ready;
std::vector<Copy> pending;
std::deque<Clocks> kept;  // what copies on their way refer to
std::multimap<const uint8_t*, Fiber*> pollers;  // by the 16 bytes that they wait for
Fiber* self;
void* scheduler_sp;
int turn;  // how many switches the running warp has left
bool failed;
Index block_dim, grid_dim;

// Random numbers: SplitMix64.
uint64_t random_state;

uint64_t random_bits() {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t draw(size_t n) { return static_cast<uint32_t>((random_bits() >> 32) * n >> 32); }

Spot spot_of(void* here) { return static_cast<Spot>(static_cast<uint8_t*>(here) - reinterpret_cast<uint8_t*>(launch->entry)); }

void* place_of(Spot spot) { return reinterpret_cast<uint8_t*>(launch->entry) + spot; }

std::string who(const Fiber* fiber) {
    char text[128];
    const Index& b = fiber->cta->block;
    snprintf(text, sizeof text, "CTA (%u, %u, %u) thread %u", b.x, b.y, b.z, fiber->index.x);
    if (grids.size() > 1) return "rank " + std::to_string(fiber->cta->cluster->grid->launch->rank) + " " + text;
    return text;
}

[[noreturn]] void leave() {
    void* ignored;
    machine_switch(&ignored, scheduler_sp);
    __builtin_unreachable();
}

// Report what happens in no thread.
void lost(void* here, void* partner, const char* format, ...) {
    if (failed) return;
    failed = true;
    launch->places[0] = here;
    launch->places[1] = partner;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(launch->report, launch->report_bytes, format, arguments);
    va_end(arguments);
}

// Report a fault of the running thread and end the run.
[[noreturn, gnu::cold]] void fault(void* here, void* partner, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lost(here, partner, "%s: %s", who(self).c_str(), text);
    leave();
}

}  // namespace
