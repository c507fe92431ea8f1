#pragma once
// What the host hands to the executor: codegen/emulator/launch.py declares the same structs.
#include <cstdint>

constexpr int kLevels = 3;

// Items of an array, `stride` bytes apart.
struct Level { uint64_t extent, stride; };

// An argument's array in the caller's memory: runs of bytes, one for each item of the `levels`, outermost
// first. What lies between runs is not the array's.
struct Array {
    const char* name;
    uint8_t* home;
    uint64_t span;  // bytes from the first to the last
    uint64_t run;   // bytes
    Level levels[kLevels];
    int32_t num_levels;
    int32_t kind;
    int32_t place;      // of its pointer among the parameters, in bytes; -1: none
    int32_t addresses;  // it holds addresses of arrays
};
enum { kConstant, kStepIn, kStepOut };  // kinds: of all steps; of this step, read; of this step, written

struct Launch {
    void (*entry)(const void*);
    const void* params;
    uint64_t params_bytes;
    uint32_t grid[3];
    uint32_t cluster, threads, smem;
    int32_t late;
    int32_t lazy;  // asynchronous work completes only when nothing else can run
    uint64_t seed;
    const Array* arrays;
    char* report;
    uint64_t report_bytes;
    void* places[2];     // addresses in the kernel: of the fault and of its partner
    uint8_t* multicast;  // an address that stands for every rank's mailbox
    int32_t num_arrays;
    int32_t mailbox;  // which of the arrays is the query mailbox; -1: none
    uint32_t rank;
    int32_t unused;
};

static_assert(sizeof(Array) == 96, "as in launch.py, which compares machine_array_bytes");
static_assert(sizeof(Launch) == 128, "as in launch.py, which compares machine_launch_bytes");
