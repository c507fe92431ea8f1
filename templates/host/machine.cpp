// The executor: one fiber per CUDA thread, one cluster at a time, from a seed.
//
// Every access is checked against what ordered it: each warp has a vector clock, and so has the
// asynchronous engine that works for it; barriers and mbarriers join them. What is not ordered is
// reported, whether or not it went wrong this time. A clock of W warps has 3 W parts: what is seen of
// the warps' writes, of their engines' writes, and which of their accesses are over. An asynchronous
// store brings its own bytes and what was over when it was issued, not its thread's other writes.
#include "machine.h"
#include "switch.h"

#include <sys/mman.h>

#include <algorithm>
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

// ---------------------------------------------------------------------------------- fibers

void make_ready(Fiber* fiber) {
    Warp* warp = fiber->warp;
    fiber->blocked = nullptr;
    warp->ready |= 1u << (fiber->index.x % kLanes);
    if (!warp->listed) {
        warp->listed = true;
        ready.push_back(warp);
    }
}

void block(const char* on, void* here) {
    self->blocked = on;
    self->here = here;
    machine_switch(&self->sp, scheduler_sp);
}

void join(Clocks& into, const Clocks& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

size_t over(int warp) { return 2 * num_warps + warp; }

// All that `warp` has done so far is over, and whoever takes its clocks now knows.
void settle(Warp* warp) { warp->clocks[over(warp->id)] = warp->clocks[warp->id]; }

// What it does from now on is later.
void tick(Warp* warp) { ++warp->clocks[warp->id]; }

int agent_of(const Warp* warp) { return static_cast<int>(num_warps) + warp->id; }

void release_barrier(Barrier& barrier) {
    barrier.done = barrier.clocks;
    barrier.arrived = 0;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

void exit_thread() {
    Cta* cta = self->cta;
    for (auto& group : self->groups)
        if (!group.empty()) fault(group[0].here, nullptr, "exits with a cp.async that it never waited for");
    self->done = true;
    --self->warp->live;
    --cta->live;
    for (auto& [id, barrier] : cta->barriers)
        if (id == 0 && barrier.arrived && barrier.arrived == cta->live) release_barrier(barrier);
    if (cta->live) return;
    cta->exited = true;
    if (!cta->waited) fault(nullptr, nullptr, "no thread of the CTA waited for the previous grid");
    for (auto& [offset, barrier] : cta->mbarriers)
        if (barrier.pending != barrier.count || barrier.tx)
            fault(barrier.here, nullptr, "exits with the mbarrier at %u under-filled: %d arrivals and %d bytes missing",
                  offset, barrier.pending, barrier.tx);
}

void run_fiber() {
    const Launch* mine = self->cta->cluster->grid->launch;
    mine->entry(mine->params);
    exit_thread();
    leave();
}

void start(Fiber* fiber) {
    if (!fiber->stack) {
        void* memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fiber->stack = static_cast<uint8_t*>(memory);
    }
    fiber->sp = machine_stack(fiber->stack + kStack - 64, run_fiber);
    fiber->done = fiber->waited = false;
    fiber->phases = 0;
    fiber->blocked = nullptr;
    fiber->groups.assign(1, {});
}

// ---------------------------------------------------------------------------------- shared memory

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

// ---------------------------------------------------------------------------------- global memory

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

// ---------------------------------------------------------------------------------- asynchronous work

void complete_mbarrier(Mbarrier& barrier) {
    if (barrier.pending || barrier.tx) return;
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.done = barrier.clocks;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

uint32_t word_at(const uint8_t* place) {
    uint32_t bits;
    memcpy(&bits, place, 4);
    return bits;
}

bool is_sentinel(uint32_t word) { return word == 0xFFFFFFFFu || word == 0x80000000u; }

// A word of a mailbox comes; those who wait for its 16 bytes look again.
void deliver(const Copy& copy) {
    if (!is_sentinel(word_at(copy.word))) return lost(copy.here, nullptr, "a mailbox gets a word twice before it is refilled");
    memcpy(copy.word, copy.value, 4);
    const auto* piece = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(copy.word) & ~uintptr_t{15});
    const auto range = pollers.equal_range(piece);
    for (auto waiting = range.first; waiting != range.second; ++waiting) make_ready(waiting->second);
    pollers.erase(range.first, range.second);
}

void finish(const Copy& copy) {
    if (!copy.target) return deliver(copy);
    const Index& b = copy.target->block;
    if (copy.target->exited)
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): %u bytes arrive in its shared memory at %u after it has exited", b.x,
                    b.y, b.z, copy.bytes, copy.offset);
    const uint8_t* source = copy.source ? copy.source : copy.value;
    memcpy(copy.target->smem.data() + copy.offset, source, copy.bytes);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, copy.here);
    if (copy.barrier == 0xFFFFFFFF) return;
    auto found = copy.target->mbarriers.find(copy.barrier);
    if (found == copy.target->mbarriers.end())
        return lost(copy.here, nullptr, "CTA (%u, %u, %u): bytes arrive for the mbarrier at %u, which is not initialised", b.x,
                    b.y, b.z, copy.barrier);
    Mbarrier& barrier = found->second;
    barrier.tx -= static_cast<int>(copy.bytes);
    if (barrier.tx < -kMaxTx || (barrier.tx < 0 && !barrier.pending))
        return lost(copy.here, barrier.here, "CTA (%u, %u, %u): the mbarrier at %u gets more bytes than it expects", b.x, b.y, b.z,
                    copy.barrier);
    Clocks clocks(3 * num_warps);
    clocks[copy.agent] = copy.clock;
    std::copy(copy.over.begin(), copy.over.end(), clocks.begin() + static_cast<long>(over(0)));
    join(barrier.clocks, clocks);
    complete_mbarrier(barrier);
}

// The running thread may use a barrier: what initialised it came before.
void check_made(const Mbarrier& barrier, const Cta* cta, void* here) {
    const bool told = barrier.fenced && self->phases >= barrier.since;
    if (cta != self->cta && !barrier.fenced)
        fault(here, barrier.here, "uses a peer's mbarrier whose initialisation no fence made visible");
    if (cta != self->cta && !told)
        fault(here, barrier.here, "uses a peer's mbarrier, and no cluster barrier came after its initialisation");
    if (!told && barrier.maker != self->warp->id && !ordered(self->warp->clocks, barrier.maker, barrier.made))
        fault(here, barrier.here, "uses an mbarrier that another warp initialises: nothing orders the two");
}

Copy make_copy(Place place, unsigned bytes, void* here) {
    Warp* warp = self->warp;
    Copy copy{};
    copy.target = place.cta;
    copy.offset = place.offset;
    copy.bytes = bytes;
    copy.barrier = 0xFFFFFFFF;
    copy.agent = agent_of(warp);
    copy.clock = ++warp->agent_clock;
    copy.here = here;
    return copy;
}

void issue(Copy copy, Address barrier, void* here) {
    const Place place = resolve(barrier, 8, here);
    if (place.cta != copy.target) fault(here, nullptr, "counts on an mbarrier of another CTA than it writes to");
    copy.barrier = place.offset;
    const auto found = place.cta->mbarriers.find(place.offset);
    if (found == place.cta->mbarriers.end())
        fault(here, nullptr, "asynchronous bytes for the mbarrier at %u, which is not initialised", place.offset);
    check_made(found->second, place.cta, here);
    if (!found->second.fenced) fault(here, found->second.here, "asynchronous bytes for an mbarrier whose initialisation no fence made visible");
    check_write(copy.target, copy.offset, copy.bytes, self->warp, here);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, here);  // from now on nobody may read
    copy.over.assign(self->warp->clocks.begin() + static_cast<long>(over(0)), self->warp->clocks.end());
    pending.push_back(copy);
}

void finish_one() {
    const size_t i = draw(pending.size());
    const Copy copy = pending[i];
    pending[i] = pending.back();
    pending.pop_back();
    finish(copy);
}

Mbarrier& mbarrier_at(Address address, void* here) {
    const Place place = resolve(address, 8, here);
    auto found = place.cta->mbarriers.find(place.offset);
    if (found == place.cta->mbarriers.end()) fault(here, nullptr, "the mbarrier at %u is not initialised", place.offset);
    Mbarrier& barrier = found->second;
    if (place.cta != self->cta && place.cta->exited) fault(here, nullptr, "arrives on an mbarrier of a CTA that has exited");
    check_made(barrier, place.cta, here);
    return barrier;
}

void arrive(Address address, uint32_t bytes, void* here) {
    Mbarrier& barrier = mbarrier_at(address, here);
    if (!barrier.pending) fault(here, barrier.here, "arrives on a full mbarrier: it takes %d arrivals", barrier.count);
    barrier.tx += static_cast<int>(bytes);
    --barrier.pending;
    settle(self->warp);
    join(barrier.clocks, self->warp->clocks);
    tick(self->warp);
    if (!barrier.pending && barrier.tx < 0) fault(here, barrier.here, "the mbarrier got more bytes than it expects");
    complete_mbarrier(barrier);
}

// ---------------------------------------------------------------------------------- meetings of a warp

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

// ---------------------------------------------------------------------------------- the scheduler

void run_warp(Warp* warp) {
    while (warp->ready && !failed) {
        uint32_t lanes = warp->ready;
        for (uint32_t skip = draw(__builtin_popcount(lanes)); skip; --skip) lanes &= lanes - 1;
        const int lane = __builtin_ctz(lanes);
        warp->ready &= ~(1u << lane);
        self = warp->lanes[lane];
        machine_switch(&scheduler_sp, self->sp);
        self = nullptr;
        if (draw(64) == 0) break;  // another warp's turn
    }
}

// What a fiber waits for, and what that lacks.
std::string what_lacks(Fiber* fiber) {
    const auto waits = [fiber](const std::vector<Fiber*>& waiting) {
        return std::find(waiting.begin(), waiting.end(), fiber) != waiting.end();
    };
    const Cta* cta = fiber->cta;
    char text[160];
    for (auto& [offset, barrier] : cta->mbarriers) {
        if (!waits(barrier.waiting)) continue;
        snprintf(text, sizeof text, "the mbarrier at %u, which lacks %d arrivals and %d bytes", offset, barrier.pending, barrier.tx);
        return text;
    }
    for (auto& [id, barrier] : cta->barriers) {
        if (!waits(barrier.waiting)) continue;
        snprintf(text, sizeof text, "block barrier %d, which has %d of %d threads", id, barrier.arrived, barrier.expected);
        return text;
    }
    return fiber->blocked ? fiber->blocked : "nothing";
}

// Who waits for what, and where: the places are written <0x..>, for their lines.
void report_deadlock() {
    struct Group { std::string first; int others; };
    std::map<std::pair<void*, std::string>, Group> groups;
    const auto count = [&groups](Fiber* fiber) {
        if (fiber->done) return;
        auto [found, fresh] = groups.try_emplace({fiber->here, what_lacks(fiber)}, Group{who(fiber), 0});
        found->second.others += !fresh;
    };
    for (auto& cluster : resident)
        for (auto& fiber : cluster->fibers) count(fiber.get());
    std::string all = "deadlock:";
    int shown = 0;
    for (auto& [key, group] : groups) {
        if (++shown > 12) break;
        char place[32];
        snprintf(place, sizeof place, "<%#llx>", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(key.first)));
        all += "\n  " + group.first + " waits for " + key.second;
        if (group.others) all += ", as do " + std::to_string(group.others) + " others";
        all += std::string(": ") + place;
    }
    if (groups.size() > 12) all += "\n  and " + std::to_string(groups.size() - 12) + " groups more";
    lost(groups.empty() ? nullptr : groups.begin()->first.first, nullptr, "%s", all.c_str());
}

void prepare_cluster(Cluster* cluster, uint32_t number) {
    const Launch* mine = cluster->grid->launch;
    const uint32_t along = mine->grid[0] / mine->cluster;
    const uint32_t x = number % along * mine->cluster, y = number / along % mine->grid[1];
    const uint32_t z = number / along / mine->grid[1];
    const size_t words = (mine->smem + 3) / 4, warps_per_cta = (mine->threads + kLanes - 1) / kLanes;
    cluster->number = number;
    cluster->barrier = {};
    for (auto& warp : cluster->warps) {
        warp->clocks.assign(3 * num_warps, 0);
        tick(warp.get());
        warp->ready = 0;
        warp->listed = false;
        warp->live = static_cast<int>(warp->lanes.size());
        warp->meeting = {};
        warp->agent_clock = 0;
    }
    for (auto& cta : cluster->ctas) {
        cta->block = {x + static_cast<uint32_t>(cta->rank), y, z};
        cta->live = static_cast<int>(mine->threads);
        cta->exited = cta->waited = false;
        cta->smem.assign(mine->smem, 0xFF);
        cta->words.assign(words, {});
        cta->reads.assign(words * warps_per_cta, 0);
        cta->read_from.assign(words * warps_per_cta, nullptr);
        cta->barriers.clear();
        cta->mbarriers.clear();
    }
    for (auto& fiber : cluster->fibers) {
        start(fiber.get());
        make_ready(fiber.get());
    }
}

bool live() {
    for (auto& cluster : resident)
        for (auto& cta : cluster->ctas)
            if (cta->live) return true;
    return false;
}

// Run the resident clusters to their end.
void run_resident() {
    while (live() && !failed) {
        if (!pending.empty() && (ready.empty() || (!launch->lazy && draw(4) == 0))) {
            finish_one();
            continue;
        }
        if (ready.empty()) return report_deadlock();
        const size_t i = draw(ready.size());
        Warp* warp = ready[i];
        run_warp(warp);
        if (!warp->ready) {
            *std::find(ready.begin(), ready.end(), warp) = ready.back();
            ready.pop_back();
            warp->listed = false;
        }
    }
    while (!pending.empty() && !failed) finish_one();
}

std::unique_ptr<Cluster> make_cluster(Grid* grid) {
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = grid;
    for (uint32_t rank = 0; rank < launch->cluster; ++rank) {
        cluster->ctas.push_back(std::make_unique<Cta>());
        Cta* cta = cluster->ctas.back().get();
        cta->cluster = cluster.get();
        cta->rank = static_cast<int>(rank);
        for (uint32_t thread = 0; thread < launch->threads; ++thread) {
            if (thread % kLanes == 0) {
                cluster->warps.push_back(std::make_unique<Warp>());
                cluster->warps.back()->cta = cta;
                cluster->warps.back()->id = static_cast<int>(cluster->warps.size()) - 1;
                cta->warps.push_back(cluster->warps.back().get());
            }
            cluster->fibers.push_back(std::make_unique<Fiber>());
            Fiber* fiber = cluster->fibers.back().get();
            fiber->cta = cta;
            fiber->warp = cluster->warps.back().get();
            fiber->index = {thread, 0, 0};
            fiber->warp->lanes.push_back(fiber);
        }
    }
    return cluster;
}

void drop_stacks() {
    for (auto& cluster : resident)
        for (auto& fiber : cluster->fibers)
            if (fiber->stack) munmap(fiber->stack, kStack);
    resident.clear();
}

}  // namespace

// Run the grids of `count` ranks. One rank's clusters run one after the other; several ranks poll one
// another, so that all of their clusters are resident. Returns 0, or 1 with the first launch's
// `report` and `places` filled.
extern "C" int machine_run(Launch* launches, int count) {
    launch = launches;
    rng.seed(launch->seed);
    failed = false;
    block_dim = {launch->threads, 1, 1};
    grid_dim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    num_warps = static_cast<size_t>(launch->cluster) * ((launch->threads + kLanes - 1) / kLanes);
    ready.clear();
    pending.clear();
    pollers.clear();
    grids.clear();
    for (int i = 0; i < count; ++i) {
        grids.push_back({&launches[i], {}});
        for (int j = 0; j < launches[i].num_buffers; ++j)
            grids.back().writers.emplace_back(launches[i].buffers[j].kind == kStepOut ? launches[i].buffers[j].bytes : 0);
    }
    const uint32_t clusters = launch->grid[0] / launch->cluster * launch->grid[1] * launch->grid[2];
    for (auto& grid : grids) {
        for (uint32_t number = 0; number < clusters && !failed; ++number) {
            if (count > 1 || !number) resident.push_back(make_cluster(&grid));
            prepare_cluster(resident.back().get(), number);
            if (count == 1) run_resident();
        }
    }
    if (count > 1) run_resident();
    drop_stacks();
    return failed;
}

namespace machine {

Index thread_index() { return self->index; }
Index block_index() { return self->cta->block; }
Index block_size() { return block_dim; }
Index grid_size() { return grid_dim; }

uint8_t* shared_memory() { return self->cta->smem.data(); }

Address shared_address(const void* pointer) {
    const auto offset = static_cast<const uint8_t*>(pointer) - self->cta->smem.data();
    return static_cast<Address>(self->cta->rank + 1) << 24 | static_cast<Address>(offset);
}

Address map_to_rank(Address address, uint32_t rank) { return (rank + 1) << 24 | (address & 0xFFFFFF); }

uint32_t cluster_rank() { return static_cast<uint32_t>(self->cta->rank); }

void block_barrier(int id, int threads, void* here) {
    Cta* cta = self->cta;
    Barrier& barrier = cta->barriers[id];
    const int expected = threads ? threads : cta->live;
    if (barrier.arrived && threads && barrier.expected != threads)
        fault(here, nullptr, "block barrier %d of %d threads, which others call with %d", id, threads, barrier.expected);
    barrier.expected = expected;
    settle(self->warp);
    join(barrier.clocks, self->warp->clocks);
    tick(self->warp);
    if (++barrier.arrived == expected) {
        release_barrier(barrier);
    } else {
        barrier.waiting.push_back(self);
        block("a block barrier", here);
    }
    join(self->warp->clocks, cta->barriers[id].done);
}

void warp_barrier(void* here) { meet(nullptr, act_nothing, "__syncwarp", here); }

void cluster_arrive(void* here) {
    self->here = here;
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    if (barrier.arrivals.count(self) && barrier.arrivals[self] == barrier.phase)
        fault(here, nullptr, "arrives twice at the cluster barrier");
    barrier.arrivals[self] = barrier.phase;
    if (++barrier.arrived < static_cast<int>(self->cta->cluster->fibers.size())) return;
    barrier.arrived = 0;
    ++barrier.phase;
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
}

void cluster_wait(void* here) {
    ClusterBarrier& barrier = self->cta->cluster->barrier;
    auto mine = barrier.arrivals.find(self);
    if (mine == barrier.arrivals.end()) fault(here, nullptr, "waits at the cluster barrier without an arrival");
    const uint32_t phases = mine->second + 1;
    if (phases > barrier.phase) {
        barrier.waiting.push_back(self);
        block("the cluster barrier", here);
    }
    self->phases = phases;
}

uint32_t shuffle(uint32_t value, int source, void* here) {
    ShuffleLane lane = {value, source, 0};
    meet(&lane, act_shuffle, "a shuffle", here);
    return lane.result;
}

void mma(float* d, const uint32_t* a, const uint32_t* b, void* here) {
    MmaLane lane = {d, a, b};
    meet(&lane, act_mma, "mma.sync", here);
}

void load_matrix(uint32_t* out, Address row, bool transposed, void* here) {
    const Place place = resolve(row, 16, here);
    if (place.cta != self->cta) fault(here, nullptr, "ldmatrix of another CTA's shared memory");
    check_read(place.cta, place.offset, 16, here, true);
    MatrixLane lane = {out, place.cta->smem.data() + place.offset, transposed};
    meet(&lane, act_matrix, "ldmatrix", here);
}

void mbarrier_init(Address address, uint32_t arrivals, void* here) {
    const Place place = resolve(address, 8, here);
    Mbarrier barrier;
    barrier.count = barrier.pending = static_cast<int>(arrivals);
    barrier.clocks.assign(3 * num_warps, 0);
    barrier.here = here;
    barrier.maker = self->warp->id;
    barrier.made = self->warp->clocks[self->warp->id];
    place.cta->mbarriers[place.offset] = barrier;
}

void mbarrier_init_fence(void*) {
    const ClusterBarrier& cluster = self->cta->cluster->barrier;
    const auto mine = cluster.arrivals.find(self);
    const bool arrived = mine != cluster.arrivals.end() && mine->second == cluster.phase;
    for (auto& [offset, barrier] : self->cta->mbarriers) {
        if (barrier.fenced || barrier.maker != self->warp->id) continue;
        barrier.fenced = true;
        barrier.since = cluster.phase + 1 + arrived;
    }
}

void mbarrier_arrive(Address address, void* here) { arrive(address, 0, here); }

void mbarrier_expect(Address address, uint32_t bytes, void* here) { arrive(address, bytes, here); }

void mbarrier_wait(Address address, uint32_t parity, void* here) {
    Mbarrier& barrier = mbarrier_at(address, here);
    while ((barrier.phase & 1) == parity) {
        barrier.waiting.push_back(self);
        block("an mbarrier", here);
    }
    join(self->warp->clocks, barrier.done);
}

void wait_for_previous_grid(void*) { self->waited = self->cta->waited = true; }

void launch_next_grid(void*) {}

void load_shared(void* out, Address source, unsigned bytes, void* here) {
    const Place place = resolve(source, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "reads another CTA's shared memory");
    check_read(place.cta, place.offset, bytes, here);
    memcpy(out, place.cta->smem.data() + place.offset, bytes);
}

void store_shared(Address target, const void* value, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta != self->cta) fault(here, nullptr, "a plain store to another CTA's shared memory");
    write_shared(place.cta, place.offset, bytes, here);
    memcpy(place.cta->smem.data() + place.offset, value, bytes);
}

void load_global(void* out, const void* source, unsigned bytes, void* here) {
    if (reinterpret_cast<uintptr_t>(source) % bytes) fault(here, nullptr, "reads %u bytes at a misaligned address", bytes);
    check_global(source, bytes, false, true, here);
    memcpy(out, source, bytes);
}

void async_load(Address target, const void* source, unsigned bytes, void* here) {
    const Place place = resolve(target, bytes, here);
    check_global(source, bytes, false, true, here);
    check_write(place.cta, place.offset, bytes, self->warp, here);
    Copy copy = make_copy(place, bytes, here);
    copy.source = static_cast<const uint8_t*>(source);
    mark_write(copy.target, copy.offset, copy.bytes, copy.agent, copy.clock, here);  // from now on nobody may read
    self->groups.back().push_back(copy);
}

void async_commit() { self->groups.emplace_back(); }

void async_wait(int groups, void*) {
    const int closed = static_cast<int>(self->groups.size()) - 1;
    for (int i = 0; i < closed - groups; ++i) {
        auto& group = self->groups[i];
        std::shuffle(group.begin(), group.end(), rng);
        for (const Copy& copy : group) {
            finish(copy);
            Clock& seen = self->warp->clocks[copy.agent];
            seen = std::max(seen, copy.clock);
        }
        group.clear();
    }
}

void bulk_load(Address target, const void* source, unsigned bytes, Address barrier, void* here) {
    if (bytes % 16 || reinterpret_cast<uintptr_t>(source) % 16 || target % 16)
        fault(here, nullptr, "a bulk copy of %u bytes: sizes and addresses are multiples of 16", bytes);
    check_global(source, bytes, false, true, here);
    const uint32_t rank = (target >> 24) - 1, offset = target & 0xFFFFFF;
    auto& ctas = self->cta->cluster->ctas;
    if (rank >= ctas.size() || offset + bytes > launch->smem)
        fault(here, nullptr, "a bulk copy of %u bytes to %u of shared memory, which has %u", bytes, offset, launch->smem);
    Copy copy = make_copy({ctas[rank].get(), offset}, bytes, here);
    copy.source = static_cast<const uint8_t*>(source);
    issue(copy, barrier, here);
}

// Each 32-bit word travels alone; `everywhere`: `target` is a multicast address.
void store_mailbox(void* target, const void* value, unsigned bytes, bool everywhere, void* here) {
    const Launch* mine = self->cta->cluster->grid->launch;
    if (!self->waited && !mine->late) fault(here, nullptr, "writes a mailbox before it waited for the previous grid");
    const int copies = everywhere ? mine->num_mailboxes : 1;
    for (int i = 0; i < copies; ++i) {
        auto* place = static_cast<uint8_t*>(target);
        if (everywhere) place = mine->mailboxes[i] + (place - mine->multicast);
        for (unsigned at = 0; at < bytes; at += 4) {
            Copy copy{};
            copy.word = place + at;
            copy.here = here;
            memcpy(copy.value, static_cast<const uint8_t*>(value) + at, 4);
            if (is_sentinel(word_at(copy.value)) && word_at(copy.value) == word_at(copy.word))
                fault(here, nullptr, "publishes the sentinel");
            bool known = false;
            for (const Grid& grid : grids)
                for (int j = 0; j < grid.launch->num_buffers; ++j) {
                    const Buffer& b = grid.launch->buffers[j];
                    known |= b.kind == kStepOut && copy.word >= b.base && copy.word + 4 <= b.base + b.bytes;
                }
            if (!known) fault(here, nullptr, "writes a mailbox outside of every rank's");
            pending.push_back(copy);
        }
    }
}

void wait_for_words(void* out, const void* place, unsigned bytes, uint32_t sentinel, void* here) {
    const auto* words = static_cast<const uint8_t*>(place);
    if (reinterpret_cast<uintptr_t>(place) % bytes) fault(here, nullptr, "polls %u bytes at a misaligned address", bytes);
    check_global(place, bytes, false, true, here);
    const auto* piece = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(place) & ~uintptr_t{15});
    for (unsigned i = 0; i < bytes; i += 4)
        while (word_at(words + i) == sentinel) {
            pollers.emplace(piece, self);
            block("a mailbox", here);
        }
    memcpy(out, place, bytes);
}

void store_remote(Address target, const void* value, unsigned bytes, Address barrier, void* here) {
    const Place place = resolve(target, bytes, here);
    if (place.cta->exited) fault(here, nullptr, "stores to shared memory of a CTA that has exited");
    Copy copy = make_copy(place, bytes, here);
    memcpy(copy.value, value, bytes);
    issue(copy, barrier, here);
}

}  // namespace machine

// What `-fsanitize=thread` makes the kernel's own code call at each plain access.
#define KGEN_HOOK(bytes)                                                                           \
    extern "C" void __tsan_read##bytes(void* p) { plain(p, bytes, false, __builtin_return_address(0)); } \
    extern "C" void __tsan_write##bytes(void* p) { plain(p, bytes, true, __builtin_return_address(0)); }
KGEN_HOOK(1)
KGEN_HOOK(2)
KGEN_HOOK(4)
KGEN_HOOK(8)
KGEN_HOOK(16)
#define KGEN_UNALIGNED_HOOK(bytes)                                                                 \
    extern "C" void __tsan_unaligned_read##bytes(void* p) { plain(p, bytes, false, __builtin_return_address(0)); } \
    extern "C" void __tsan_unaligned_write##bytes(void* p) { plain(p, bytes, true, __builtin_return_address(0)); }
KGEN_UNALIGNED_HOOK(2)
KGEN_UNALIGNED_HOOK(4)
KGEN_UNALIGNED_HOOK(8)
KGEN_UNALIGNED_HOOK(16)
extern "C" void __tsan_read_range(void* p, unsigned long n) { plain(p, static_cast<unsigned>(n), false, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* p, unsigned long n) { plain(p, static_cast<unsigned>(n), true, __builtin_return_address(0)); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
