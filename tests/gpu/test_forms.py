"""Every form of the query kernel on a GPU: all switches, padded outputs, late, release off."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgen.codegen import api, build, schema
from kgen.codegen.bench import uncached
from kgen.codegen.compiler import render
from kgen.codegen.plan import Plan, plan
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.schema import combinations
from kgen.codegen.verify import gpu

from ..helpers import cases
from ..helpers.cases import Layout
from .test_chain import lines, slow_copy
from .test_query import check_sweep

pytestmark = pytest.mark.gpu

HEADS = (2, 8, 1, 6, 3, 1, 12, 2, 1)
BATCHES = ((1, 2, 5, 7, 8), (15, 16, 17, 31), (33, 63, 65, 200))  # of each schedule of the table
PADDED = 64  # FlashMLA's heads of a token

LEGAL = combinations.legal(schema.Query)


def _sweep() -> dict[str, schema.Config]:
    """Each combination at a shape of each schedule that it has; shapes take turns."""
    found: dict[str, schema.Config] = {}
    for number, combination in enumerate(LEGAL):
        rows_only = "q_b_cp_async" in combination.fields
        for turn, batches in enumerate(BATCHES[:1] if rows_only else BATCHES):
            shape = {
                "heads": HEADS[(number + 2 * turn) % len(HEADS)],
                "batch": batches[number % len(batches)],
            }
            config = schema.make("query", shape | combination.fields)
            found[config.slug] = config
    return found


SWEEP = _sweep()


@pytest.fixture(scope="module")
def built() -> None:
    """All kernels of the sweep, compiled side by side."""
    results = build.build_many(SWEEP.values(), [nvml.default_arch()])
    assert [result.error for result in results if result.error] == []


def test_the_sweep_has_every_combination() -> None:
    switches = [option.name for option in combinations.switches(schema.Query)]
    seen = {tuple(getattr(c, name) for name in switches) for c in SWEEP.values()}
    assert len(seen) == len(LEGAL)


@pytest.mark.parametrize("slug", SWEEP)
def test_fresh_inputs_of_every_combination(slug: str, built: None) -> None:
    outcome = gpu.verify(SWEEP[slug], seed=zlib.crc32(slug.encode()))
    print(outcome.text())
    assert outcome.right, outcome.text()


@pytest.mark.parametrize("form", cases.FORMS)
@pytest.mark.parametrize(("heads", "batch"), [(8, 5), (6, 17), (12, 40)])
def test_padded_heads_and_q_c_rows(heads: int, batch: int, form: str) -> None:
    layout = Layout(head_gap=PADDED - heads, row_pad=512)
    check_sweep(form, None, cases.fresh(heads, batch, layout=layout))


@pytest.mark.parametrize("form", ["dsa", "dsa_fp8", "dsa_nvfp4"])
@pytest.mark.parametrize(("heads", "batch"), [(2, 8), (2, 17), (2, 40)])
def test_query_norm_gives_the_q_c_that_store_qc_gave(heads: int, batch: int, form: str) -> None:
    scheme = "rows" if batch <= 8 else "ksplit"  # with q_c or without
    fields = {"heads": heads, "batch": batch, "scheme": scheme, **cases.FORMS[form]}
    whole, bare, norm = (
        api.kernel(schema.make(family, given))
        for family, given in (
            ("query", fields),
            ("query", fields | {"store_qc": False}),
            ("query_norm", {"batch": batch}),
        )
    )
    inputs = cases.fresh(heads, batch)
    want, got = cases.launch(whole, inputs), cases.launch(bare, inputs)
    assert want.q_c is not None and got.q_c is None and cases.same(want, got)
    cupy = pytest.importorskip("cupy")
    w_qa = cupy.asarray(inputs.weights["w_qa"])
    q_c = norm(cupy.asarray(inputs.qkv), w_qa=w_qa, eps=inputs.eps).get()
    np.testing.assert_array_equal(q_c, want.q_c)


ROUNDS = 1000
SEEDS = 8  # inputs that take turns: a stale output is another seed's
SLOW, SHORT = 30_000, 2_000  # cycles

Bound = Callable[[], Any]


def copier(name: str, *steps: str) -> Kernel:
    """A kernel that copies rows of 16 bytes; ``steps`` say in which order it does what."""
    made = replace(slow_copy().plan, code=name, template=f"{name}.cu")
    actions = {
        "release": "griddepcontrol_launch_dependents();",
        "wait": "griddepcontrol_wait();",
        "idle": "for (long long start = clock64(); clock64() - start < params.cycles;) {}",
        "copy": """
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < params.num_rows;
         i += gridDim.x * blockDim.x)
        reinterpret_cast<Vec16*>(params.target)[i] = ld_global_cg_16(params.source + 16 * i);""",
    }
    body = "\n    ".join(actions[step] for step in steps)
    text = f"""
#include "ptx/copy.cuh"

struct Params {{
    const uint8_t* source;
    uint8_t* target;
    int32_t cycles;
    int32_t num_rows;
}};

extern "C" __global__ void {made.entry}(const __grid_constant__ Params params) {{
    {body}
}}
"""
    return uncached.handwritten(made, text)


def bound(kernel: Kernel, source: Any, target: Any, cycles: int = 0) -> Bound:
    source, target = lines(source), lines(target)
    return kernel.bind(source=source, target=target, cycles=cycles, num_rows=len(source))


class Chain:
    """Rounds of one query kernel whose packed rows are written anew, and read late, every time."""

    def __init__(self, kernel: Kernel, heads: int, batch: int) -> None:
        import cupy

        self.inputs = [cases.fresh(heads, batch)]
        for seed in range(1, SEEDS):
            qkv = cases.bf16(np.random.default_rng(seed), batch, 2112, scale=1)
            self.inputs.append(replace(self.inputs[0], qkv=qkv))
        self.expected = [cases.launch(kernel, given, pdl=False) for given in self.inputs]
        memory = cases.Memory.of(kernel, self.inputs[0])
        self.step = kernel.bind(**memory.arguments)
        self.qkv, self.out = memory.backings["qkv"], memory.backings["out"]
        self.sources = [cupy.asarray(given.qkv) for given in self.inputs]
        self.outs = cupy.asarray(cases.poisoned((ROUNDS, *self.out.shape), self.out.dtype))

    def run(self, *steps: list[Bound]) -> None:
        """All rounds on a stream of their own; each step is given its round's launch."""
        import cupy

        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for number in range(ROUNDS):
                for launches in steps:
                    launches[number % len(launches)]()
        stream.synchronize()

    def wrong(self) -> list[int]:
        """The rounds whose query is not that of their inputs."""
        outs = self.outs.get()
        wants = [self.expected[number % SEEDS].query for number in range(ROUNDS)]
        return [n for n, want in enumerate(wants) if not np.array_equal(outs[n], want)]


SHAPES = ((2, 8), (8, 16), (8, 33))  # one for each schedule of the table


def late(heads: int, batch: int, release: str) -> Plan:
    fields = {"heads": heads, "batch": batch, "dsa": True, "late": True, "release": release}
    return plan(schema.make("query", fields), nvml.default_arch())


def late_rounds(
    kernel: Kernel, *reader: str, neighbour: tuple[str, ...] = ("wait", "release")
) -> tuple[list[int], list[int]]:
    """Rounds in which a ``reader`` of the query, or of a slow ``neighbour``, read wrong values.

    In each round one kernel writes the packed rows; a slow one then triggers its dependents after
    its own wait and writes an array of its own; the query runs beside it; a reader follows.
    """
    import cupy

    config: Any = kernel.plan.config
    chain = Chain(kernel, config.heads, config.batch)
    first = copier("write", "release", "wait", "idle", "copy")
    beside = copier("beside", *neighbour, "idle", "copy")
    after = copier("read", *reader)
    numbers = cupy.arange(ROUNDS * 64, dtype=np.int32).reshape(ROUNDS, 64)
    other, others = cupy.full(64, -1, np.int32), cupy.full((ROUNDS, 64), -1, np.int32)
    chain.run(
        [bound(first, source, chain.qkv, SHORT) for source in chain.sources],
        [bound(beside, number, other, SLOW) for number in numbers],
        [chain.step],
        [bound(after, other, into) for into in others],
        [bound(after, chain.out, into) for into in chain.outs],
    )
    stale = (others != numbers).any(axis=1).get()
    return chain.wrong(), np.flatnonzero(stale).tolist()


@pytest.mark.parametrize(("heads", "batch"), SHAPES)
def test_late_beside_a_slow_kernel(heads: int, batch: int) -> None:
    kernel = uncached.kernel(late(heads, batch, "start"))
    assert late_rounds(kernel, "release", "wait", "copy") == ([], [])


@pytest.mark.parametrize(("heads", "batch"), SHAPES)
def test_late_without_release_before_an_early_reader(heads: int, batch: int) -> None:
    assert late_rounds(uncached.kernel(late(heads, batch, "end")), "copy", "wait") == ([], [])


def test_a_late_kernel_runs_beside_and_its_last_wait_is_needed() -> None:
    """Without that wait the early reader finds what the slow kernel has not written yet."""
    made = late(2, 8, "end")
    source = render.render(made)
    wait = "if constexpr (kLate) griddepcontrol_wait();"
    assert source.text.count(wait) == 1
    hasty = uncached.kernel(made, replace(source, text=source.text.replace(wait, "")))
    wrong, stale = late_rounds(hasty, "copy", "wait")
    assert wrong == [] and stale


def test_a_late_kernel_after_one_that_releases_at_its_start_reads_too_early() -> None:
    """The precondition of ``late``: the kernel before it triggers after its own wait."""
    hasty = ("release", "wait")
    wrong, _ = late_rounds(uncached.kernel(late(2, 8, "end")), "wait", "copy", neighbour=hasty)
    assert wrong


def early_reads(fields: dict[str, Any]) -> list[int]:
    """Rounds in which a reader that reads before its own wait read a wrong query."""
    kernel = api.kernel(schema.make("query", fields))
    chain = Chain(kernel, fields["heads"], fields["batch"])
    first = copier("write", "release", "wait", "idle", "copy")
    early = copier("read_early", "copy", "wait")
    chain.run(
        [bound(first, source, chain.qkv, SHORT) for source in chain.sources],
        [chain.step],
        [bound(early, chain.out, into) for into in chain.outs],
    )
    return chain.wrong()


@pytest.mark.parametrize("form", ["dense", "dsa"])
@pytest.mark.parametrize(("heads", "batch"), SHAPES)
def test_release_off_lets_a_reader_read_before_its_wait(heads: int, batch: int, form: str) -> None:
    fields = {"heads": heads, "batch": batch, **cases.FORMS[form]}
    assert early_reads(fields | {"release": "end"}) == []


def test_release_on_does_not() -> None:
    assert early_reads({"heads": 8, "batch": 16}), "the reader must need release off"
