"""The query kernel between two others in a programmatic chain: a slow writer, then a reader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgen.codegen import api, schema
from kgen.codegen.bench import uncached
from kgen.codegen.plan import Array, Axis, ParamTable, Plan, Region, Scalar, Schedule
from kgen.codegen.plan.model import work
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel, Prepared
from kgen.codegen.targets import target

from ..helpers import cases

pytestmark = pytest.mark.gpu

ROUNDS = 1000
SEEDS = 8  # inputs that take turns: a stale output is another seed's
CAPTURED = 100  # rounds in a graph
CYCLES = (0, 3000, 20_000, 800)  # of delay before a copy writes

# Both writer and reader: it lets the next grid start at once, waits, idles, then copies.
COPY = """
#include "ptx/copy.cuh"

struct Params {
    const uint8_t* source;
    uint8_t* target;
    int32_t cycles;
    int32_t num_rows;
};

extern "C" __global__ void kgen_slow_copy(const __grid_constant__ Params params) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    const long long start = clock64();
    while (clock64() - start < params.cycles) {}
    const int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < params.num_rows; i += threads)
        reinterpret_cast<Vec16*>(params.target)[i] = ld_global_cg_16(params.source + 16 * i);
}
"""


def slow_copy() -> Kernel:
    """Copies rows of 16 bytes, ``cycles`` after the grids before it are complete."""
    config = schema.make("query", {"heads": 1, "batch": 1})  # a name, nothing else
    chip = target(nvml.default_arch())
    rows = (Axis(rows=True), Axis(16))
    limit = 1 << 20
    plan = Plan(
        config=config,
        target=chip,
        schedule=Schedule("copy", 1),
        template="slow_copy.cu",
        code="slow_copy",
        grid=(4, 1, 1),
        cluster=1,
        threads=256,
        smem=(Region("none", 0, 0),),
        params=ParamTable(
            arrays=(Array("source", "u8", rows), Array("target", "u8", rows, role="out")),
            scalars=(
                Scalar("cycles", "i32", low=0, high=1 << 30),
                Scalar("num_rows", "i32", low=1, high=limit),
            ),
        ),
        constants={},
        work=work(0, 0, chip),
    )
    return uncached.handwritten(plan, COPY)


def lines(array: Any) -> Any:
    """A contiguous array as rows of 16 bytes."""
    return array.view(np.uint8).reshape(-1, 16)


class Chain:
    """Launches of rounds: qkv is written late, the query runs, its outputs are copied away."""

    def __init__(self, heads: int, batch: int, scheme: str, release: str, rounds: int) -> None:
        import cupy

        fields = {"heads": heads, "batch": batch, "scheme": scheme, "release": release}
        self.kernel = api.kernel(schema.make("query", fields))
        self.copy = slow_copy()
        self.inputs = [cases.fresh(heads, batch)]
        for seed in range(1, SEEDS):
            qkv = cases.bf16(np.random.default_rng(seed), batch, 2112, scale=1)
            self.inputs.append(replace(self.inputs[0], qkv=qkv))
        self.expected = [cases.launch(self.kernel, given, pdl=False) for given in self.inputs]
        memory = cases.Memory.of(self.kernel, self.inputs[0])
        self.step = self.kernel.bind(**memory.arguments)
        qkv, out, cache = (memory.backings[name] for name in ("qkv", "out", "cache"))
        sources = [cupy.asarray(given.qkv) for given in self.inputs]
        self.outs = cupy.asarray(cases.poisoned((rounds, *out.shape), np.uint8))
        self.caches = cupy.asarray(cases.poisoned((rounds, *cache.shape), np.uint8))
        self.writers = [
            [self.bound(source, qkv, cycles) for cycles in CYCLES] for source in sources
        ]
        self.readers = [
            (self.bound(out, self.outs[i], 0), self.bound(cache, self.caches[i], 0))
            for i in range(rounds)
        ]
        cupy.cuda.Device().synchronize()

    def bound(self, source: Any, into: Any, cycles: int) -> Prepared:
        source, into = lines(source), lines(into)
        return self.copy.bind(source=source, target=into, cycles=cycles, num_rows=len(source))

    def launch(self) -> None:
        """All rounds, on the current stream."""
        for number, readers in enumerate(self.readers):
            self.writers[number % SEEDS][number // SEEDS % len(CYCLES)]()
            self.step()
            for reader in readers:
                reader()

    def poison(self) -> None:
        """Forget what the readers brought."""
        self.outs.data.memset(cases.POISON, self.outs.nbytes)
        self.caches.data.memset(cases.POISON, self.caches.nbytes)

    def wrong(self) -> list[int]:
        """The rounds whose outputs are not those of their inputs."""
        outs, caches = self.outs.get(), self.caches.get()
        pairs = enumerate(zip(outs, caches, strict=True))
        return [number for number, pair in pairs if not self.right(number, *pair)]

    def right(self, number: int, out: np.ndarray, cache: np.ndarray) -> bool:
        want = self.expected[number % SEEDS]
        return np.array_equal(out, want.query) and np.array_equal(
            cache.reshape(want.lines.shape), want.lines
        )


# One for each schedule.
SHAPES = ((2, 8, "folded"), (2, 8, "rows"), (8, 16, "ksplit"), (8, 33, "ksplit"))
RELEASES = ("start", "wait", "end")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("heads", "batch", "scheme"), SHAPES)
def test_chain_in_a_stream(heads: int, batch: int, scheme: str, release: str) -> None:
    cupy = pytest.importorskip("cupy")
    chain = Chain(heads, batch, scheme, release, ROUNDS)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        chain.launch()
    stream.synchronize()
    assert chain.wrong() == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("heads", "batch", "scheme"), SHAPES)
def test_chain_in_a_graph(heads: int, batch: int, scheme: str, release: str) -> None:
    cupy = pytest.importorskip("cupy")
    chain = Chain(heads, batch, scheme, release, CAPTURED)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        chain.launch()
        graph = stream.end_capture()
    for _ in range(ROUNDS // CAPTURED):
        chain.poison()
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert chain.wrong() == []
