// The executor: one fiber per CUDA thread, one cluster at a time, from a seed.
//
// Every access is checked before it is made: it belongs to an argument's array, to the parameters, to the
// CTA's shared memory or to the thread's own stack; and something ordered it. Each warp has a vector clock,
// and so has the asynchronous engine that works for it; barriers and mbarriers join them. What is not
// ordered is reported, whether or not it went wrong this time. A clock of W warps has 5 W parts: what is
// seen of the warps' writes, of their engines' writes, which of their accesses are over, and what of both kinds
// of writes the asynchronous proxy sees. An asynchronous store brings its own bytes and what was over when it was
// issued, not its thread's other writes.
#include "hooks.ipp"
#include "scheduler.ipp"
#include "signals.ipp"

extern "C" const uint64_t machine_array_bytes = sizeof(Array), machine_launch_bytes = sizeof(Launch);

namespace {

void begin(Launch* launches, int count) {
    launch = launches;
    random_state = launch->seed;
    failed = false;
    block_dim = {launch->threads, 1, 1};
    grid_dim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    num_warps = static_cast<size_t>(launch->cluster) * ((launch->threads + kLanes - 1) / kLanes);
    find_constants();
    grids.resize(count);
    size_t cell = 0;
    for (int i = 0; i < count; cell += launches[i++].num_arrays) {
        grids[i].launch = &launches[i];
        map_grid(grids[i], cell);
    }
}

void end() {
    for (auto& cluster : resident) unmap_cluster(*cluster);
    for (Grid& grid : grids) unmap_grid(grid);
    resident.clear();
    grids.clear();
    ready.clear();
    pending.clear();
    pollers.clear();
    kept.clear();
    tensors.clear();
    warpgroups.clear();
}

void run(Launch* launches, int count) {
    begin(launches, count);
    const uint32_t clusters = launch->grid[0] / launch->cluster * launch->grid[1] * launch->grid[2];
    for (auto& grid : grids) {
        for (uint32_t number = 0; number < clusters && !failed; ++number) {
            if (count > 1 || !number) resident.push_back(make_cluster(&grid));
            prepare_cluster(resident.back().get(), number);
            if (count == 1) run_resident();
        }
    }
    if (count > 1) run_resident();
}

}  // namespace

// Run the grids of `count` ranks. One rank's clusters run one after the other; several ranks poll one
// another, so that all of their clusters are resident. Returns 0, or 1 with the first launch's
// `report` and `places` filled; outputs are as they were then.
extern "C" int machine_run(Launch* launches, int count) {
    const Signals signals;
    try {
        run(launches, count);
    } catch (const NoSpace&) {
        lost(nullptr, nullptr, "the run needs more address space than this process may have");
    }
    end();
    return failed;
}
