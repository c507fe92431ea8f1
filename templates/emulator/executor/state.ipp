// What there is at a moment of a run, and how a fault ends it. Part of machine.cpp.
#pragma once
#include "machine.h"
#include "switch.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using machine::Address;
using machine::Index;
using Clock = uint32_t;
using Clocks = std::vector<Clock>;

constexpr int kLanes = 32;
constexpr size_t kParts = 5;  // of a clock: machine.cpp
constexpr size_t kStack = 64 << 10;
constexpr size_t kNear = 4096;  // bytes around an array that are taken for a miss of it
constexpr int kMaxTx = 1 << 20;

struct Buffer {
    const char* name;
    uint8_t* base;
    uint64_t bytes;
    int32_t kind;  // 0 constant, 1 of the step, read; 2 of the step, written
    int32_t pad;
};
enum { kConstant, kStepIn, kStepOut };

struct Launch {
    void (*entry)(const void*);
    const void* params;
    uint64_t params_bytes;
    uint32_t grid[3];
    uint32_t cluster, threads, smem;
    int32_t late;
    uint64_t seed;
    const Buffer* buffers;
    int32_t num_buffers;
    int32_t lazy;  // asynchronous work completes only when nothing else can run
    char* report;
    uint64_t report_bytes;
    void* places[2];  // addresses in the kernel: of the fault and of its partner
    uint8_t* multicast;  // an address that stands for every rank's mailbox
    uint8_t* const* mailboxes;
    int32_t num_mailboxes;
    uint32_t rank;
};

struct Cta;
struct Warp;

// A rank's grid, and which warp wrote each byte of its outputs.
struct Grid {
    Launch* launch;
    std::vector<std::vector<uint32_t>> writers;
};

struct Copy {  // asynchronous work on its way
    Cta* target;    // null: a word of a mailbox
    uint8_t* word;  // of it
    uint32_t offset, bytes;
    const uint8_t* source;  // null: `value` holds the bytes
    uint8_t value[16];
    uint32_t barrier;  // offset in the target; 0xFFFFFFFF: none
    int agent;
    Clock clock;
    void* here;
    Clocks over;  // accesses that were over at the issue
};

struct Fiber {
    void* sp = nullptr;
    uint8_t* stack = nullptr;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    Index index{};
    bool done = false, waited = false;
    uint32_t phases = 0;  // of the cluster barrier, that it waited for
    const char* blocked = nullptr;  // on what
    void* here = nullptr;
    std::vector<std::vector<Copy>> groups;  // of cp.async, the last one open
};

struct Meeting {
    int arrived = 0;
    void* slots[kLanes];
    void (*act)(void**) = nullptr;
};

struct Warp {
    Cta* cta;
    int id;  // in the cluster
    std::vector<Fiber*> lanes;
    uint32_t ready = 0;
    bool listed = false;
    int live = 0;
    Clocks clocks;
    Meeting meeting;
    Clock agent_clock = 0;
};

struct Barrier {
    int arrived = 0, expected = 0;
    Clocks clocks, done;
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
    std::vector<Fiber*> waiting;
    void* here = nullptr;
};

struct Word {
    Clock clock = 0;
    int16_t writer = -1;  // of the cluster's warps and agents; -1: nothing was written
    void* here = nullptr;
};

struct Cluster;

struct Cta {
    Cluster* cluster = nullptr;
    Index block{};
    int rank = 0, live = 0;
    bool exited = false, waited = false;
    std::vector<uint8_t> smem;
    std::vector<Word> words;
    std::vector<Clock> reads;  // [word][warp of the CTA]
    std::vector<void*> read_from;
    std::vector<Warp*> warps;
    std::map<int, Barrier> barriers;
    std::map<uint32_t, Mbarrier> mbarriers;
};

struct ClusterBarrier {
    int arrived = 0;
    std::vector<Fiber*> waiting;
    uint32_t phase = 0;
    std::map<Fiber*, uint32_t> arrivals;
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
std::mt19937_64 rng;
std::vector<Grid> grids;
std::vector<std::unique_ptr<Cluster>> resident;
size_t num_warps;  // of a cluster
std::vector<Warp*> ready;
std::vector<Copy> pending;
std::multimap<const uint8_t*, Fiber*> pollers;  // by the 16 bytes that they wait for
Fiber* self;
void* scheduler_sp;
bool failed;
Index block_dim, grid_dim;

uint32_t draw(size_t n) { return static_cast<uint32_t>(rng() % n); }

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

void record(void* here, void* partner, const char* format, va_list arguments) {
    if (failed) return;
    failed = true;
    launch->places[0] = here;
    launch->places[1] = partner;
    vsnprintf(launch->report, launch->report_bytes, format, arguments);
}

// Report a fault of the running thread and end the run.
[[noreturn]] void fault(void* here, void* partner, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!failed) {
        failed = true;
        launch->places[0] = here;
        launch->places[1] = partner;
        snprintf(launch->report, launch->report_bytes, "%s: %s", who(self).c_str(), text);
    }
    leave();
}

// The same where no thread runs.
void lost(void* here, void* partner, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(here, partner, format, arguments);
    va_end(arguments);
}

}  // namespace
