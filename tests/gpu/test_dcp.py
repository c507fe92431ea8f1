"""Decode context parallelism on one GPU: virtual ranks, each with its own buffers and stream.

Virtual ranks launch with ``release`` off and without programmatic launches: a successor of one rank
must not take the room that another rank needs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from kgen.codegen import api, schema
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.dims import PARTIAL_SENTINEL
from kgen.codegen.errors import DeviceError
from kgen.codegen.reference import dcp, value
from kgen.codegen.reference.formats import from_bf16, from_e4m3, to_bf16
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.verify import tolerance
from kgen.codegen.verify.samples import bf16, query_weights

from .test_chain import slow_copy

pytestmark = pytest.mark.gpu

Arrays = dict[str, Any]

WAITS = 400  # CTAs of query_wait that leave room for a query on every SM
PATIENCE = 20.0  # seconds for a step; then its mailboxes are filled, so that polls end
STEPS, SETS = 200, 4
FORMS: dict[str, Arrays] = {"dense": {}, "dsa": {"dsa": True}}
PADDED = 64
CYCLES_50_MS = 90_000_000
SPREAD = 60_000  # cycles: random delays between ranks

SHAPES = [(d, h, b) for d in (2, 4, 8) for h in (2, 6, 8) for b in (1, 3, 8, 16, 64, 65, 130)]


def cupy() -> Any:
    return pytest.importorskip("cupy")


@dataclass
class World:
    """The mailboxes, streams and delays of virtual ranks."""

    shape: Shape
    boxes: list[Mailboxes]
    streams: list[Any]
    delay: Kernel
    idle: Any  # what the delays copy

    @classmethod
    def of(cls, shape: Shape) -> World:
        cp = cupy()
        boxes = Mailboxes.of_ranks(shape)
        streams = [cp.cuda.Stream(non_blocking=True) for _ in boxes]
        idle = cp.zeros((shape.ranks, 2, 1, 16), cp.uint8)
        cp.cuda.Device().synchronize()
        return cls(shape, boxes, streams, _delay(), idle)

    def wait(self, rank: int, cycles: int) -> None:
        """Keep a rank's stream busy."""
        source, target = self.idle[rank]
        arguments = {"target": target, "cycles": cycles, "num_rows": 1}
        self.delay(source, **arguments, stream=self.streams[rank], pdl=False)

    @contextmanager
    def step(self, parity: int) -> Iterator[None]:
        """Launches inside are complete after it; a poll without end fails the test alone."""
        yield
        end = time.monotonic() + PATIENCE
        while not all(stream.done for stream in self.streams):
            if time.monotonic() > end:
                self._rescue(parity)
                pytest.fail(f"a poll did not end within {PATIENCE} s")
        cupy().cuda.Device().synchronize()

    def _rescue(self, parity: int) -> None:
        with cupy().cuda.Stream(non_blocking=True) as stream:
            for box in self.boxes:
                for name in ("mailbox", "partials", "lse_box"):
                    box.view(name, parity).view(np.uint8)[...] = 0
            stream.synchronize()


@cache
def _delay() -> Kernel:
    return slow_copy()


@pytest.fixture(autouse=True)
def all_ranks_here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What loading checks is that the ranks of the test share this GPU."""
    parameters = getattr(request.node, "callspec", None)
    ranks = parameters.params.get("dcp", 2) if parameters else 2
    monkeypatch.setenv("KGEN_RANKS_PER_GPU", str(ranks))


def make(kernel: str, **fields: Any) -> Kernel:
    return api.kernel(schema.make(kernel, fields), nvml.default_arch())


def fits(kernel: Kernel) -> bool:
    """Whether all ranks can poll on this GPU; what does not fit uses query_wait."""
    try:
        kernel.load()
    except DeviceError as error:
        assert "co-residency" in str(error)
        return False
    return True


class Queries:
    """The query of every rank and, of each input set, what all compute without DCP."""

    def __init__(self, dcp: int, heads: int, batch: int, form: str, poll: bool | None = None):
        fields = {"heads": heads, "batch": batch, **FORMS[form]}
        self.padded = PADDED if form == "dsa" and dcp * heads <= PADDED else 0
        ranks = {"dcp": dcp, "transport": "unicast", "q_heads": self.padded, "release": False}
        self.polls = fits(make("query", **fields, **ranks)) if poll is None else poll
        self.batch, self.heads = batch, heads
        self.alone = make("query", **fields, scheme="rows" if batch <= 8 else "ksplit")
        self.whole = make("query", **fields, **ranks, poll=self.polls)
        wide = form == "dsa"
        waits = {"heads": heads, "batch": batch, "dcp": dcp, "q_heads": self.padded, "bf16": wide}
        self.wait = make("query_wait", **waits, release=False)
        self.world = World.of(Shape(dcp, heads, batch + 3, self.padded, wide))
        rng = np.random.default_rng(dcp * 1000 + heads * 100 + batch)
        self.ranks = [self._rank(rng) for _ in range(dcp)]
        self.sets = [cupy().asarray(bf16(rng, batch, 2112)) for _ in range(SETS)]
        self.want = [self._expected(qkv) for qkv in self.sets]
        self.queried: dict[int, Any] = {}
        self.delays = rng.integers(0, SPREAD, (STEPS, dcp))

    def _rank(self, rng: np.random.Generator) -> Arrays:
        cp, heads, batch = cupy(), self.heads, self.batch
        one = np.full(1, 2, np.float32)
        made = {
            **query_weights(rng, heads),
            "slots": rng.permutation(4 * 64)[:batch].astype(np.int64),
            "cache": np.zeros((4, 64, self._row_bytes()), np.uint8),
            **{name: one for name in ("q_scale_inv", "k_scale_inv")},
        }
        taken = {name: cp.asarray(made[name]) for name in made if name in self._names()}
        outputs = [a for a in self.whole.plan.params.arrays if a.role == "out"]
        for array in outputs:
            rest = tuple(axis.extent for axis in array.axes[1:])
            taken[array.name] = cp.empty((batch, *rest), f"u{array.itemsize}")
        return taken

    def _names(self) -> tuple[str, ...]:
        return self.alone.plan.params.names

    def _row_bytes(self) -> int:
        table = {array.name: array for array in self.whole.plan.params.arrays}
        return table["cache"].axes[-1].extent

    def _expected(self, qkv: Any) -> Any:
        cp = cupy()
        for own in self.ranks:
            self.alone(qkv, **own)
        cp.cuda.Device().synchronize()
        return cp.concatenate([own["out"].copy() for own in self.ranks], axis=1)

    def launch(self, step: int, *, late: dict[int, int] | None = None) -> None:
        """One step of every rank, each behind a delay of its own; in a random order."""
        parity, world = step % 2, self.world
        order = np.random.default_rng(step).permutation(len(self.ranks))
        with world.step(parity):
            for rank in map(int, order):
                world.wait(rank, (late or {}).get(rank, int(self.delays[step % STEPS, rank])))
                given = self.ranks[rank] | world.boxes[rank].arguments(self.whole, parity)
                stream = world.streams[rank]
                self.whole(self.sets[step % SETS], **given, stream=stream, pdl=False)
                self.queried[stream.ptr] = stream.record()
            for rank in map(int, order) if not self.polls else ():
                self._leave_room(rank)
                given = world.boxes[rank].arguments(self.wait, parity)
                self.wait(**given, stream=world.streams[rank], pdl=False)

    def _leave_room(self, rank: int) -> None:
        """Where the waits of other ranks could fill the GPU, they start after every query."""
        if len(self.ranks) * self.batch > WAITS:
            for stream in self.world.streams:
                self.world.streams[rank].wait_event(self.queried[stream.ptr])

    def judge(self, step: int) -> None:
        """Every mailbox is the concatenation; all else is sentinels. Refills what was read."""
        cp, parity, want = cupy(), step % 2, self.want[step % SETS]
        sentinel = 0xFFFF if self.world.shape.bf16 else 0xFF
        for rank, box in enumerate(self.world.boxes):
            queries = box.view("mailbox", parity)
            live = queries[: self.batch, : want.shape[1]]
            mine = slice(rank * self.heads, (rank + 1) * self.heads)
            assert bool((live == want).all()), f"step {step}: rank {rank}'s mailbox"
            assert bool((self.ranks[rank]["out"] == want[:, mine]).all()), f"step {step}: {rank}"
            live[...] = sentinel
            assert bool((queries == sentinel).all()), f"step {step}: rank {rank}: padding"
        cp.cuda.Device().synchronize()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dcp", "heads", "batch"), SHAPES)
def test_gathered_query(dcp: int, heads: int, batch: int, form: str) -> None:
    """200 steps of changing inputs and random delays over both parities, bit for bit."""
    subject = Queries(dcp, heads, batch, form)
    for step in range(STEPS):
        subject.launch(step)
        subject.judge(step)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dcp", "heads", "batch"), [(2, 8, 8), (2, 2, 64), (4, 2, 16)])
def test_query_wait_gives_the_same_bytes(dcp: int, heads: int, batch: int, form: str) -> None:
    subject = Queries(dcp, heads, batch, form, poll=False)
    for step in range(20):
        subject.launch(step)
        subject.judge(step)


@pytest.mark.parametrize("dcp", [2, 8])
def test_a_rank_that_is_late_delays_and_does_not_corrupt(dcp: int) -> None:
    subject = Queries(dcp, 2, 8, "dense")
    for step in range(6):
        start = time.monotonic()
        subject.launch(step, late={step % dcp: CYCLES_50_MS})
        assert time.monotonic() - start > 0.03
        subject.judge(step)


class Tails:
    """The dcp_value of every rank."""

    def __init__(self, dcp: int, heads: int, batch: int, q: int = 1):
        fields = {"heads": heads, "batch": batch, "q": q, "dcp": dcp}
        self.made = make("dcp_value", **fields, release=False)
        self.world = World.of(Shape(dcp, heads, batch + 3))
        self.rng = np.random.default_rng(batch)
        self.dcp, self.heads, self.batch, self.q = dcp, heads, batch, q
        self.weights = [bf16(self.rng, heads, 128, 512, scale=0.05) for _ in range(dcp)]

    def inputs(self) -> list[Arrays]:
        rng, whole = self.rng, self.dcp * self.heads
        lengths = rng.integers(0, 4, self.batch // self.q).astype(np.int32)
        return [
            {
                "rows": bf16(rng, self.batch, whole, 512),
                "lse": rng.standard_normal((self.batch, whole)).astype(np.float32) * 5,
                "local_lengths": rng.integers(-1, 4, self.batch // self.q).astype(np.int32),
                "w_uv": weights,
                "gate": bf16(rng, self.batch, self.heads * 128),
                "lengths": lengths,
            }
            for weights in self.weights
        ]

    def run(self, given: list[Arrays], parity: int, cycles: int = SPREAD) -> list[np.ndarray]:
        """What each rank's kernel gives; afterwards every mailbox is armed."""
        cp = cupy()
        outs = [cp.full((self.batch, self.heads * 128), 0xEEEE, cp.uint16) for _ in given]
        held = [{name: cp.asarray(array) for name, array in own.items()} for own in given]
        for box in self.world.boxes:
            box.view("mailbox", parity)[: self.batch] = 5
        cp.cuda.Device().synchronize()
        with self.world.step(parity):
            for rank, (own, box) in enumerate(zip(held, self.world.boxes, strict=True)):
                self.world.wait(rank, int(self.rng.integers(0, cycles)))
                more = box.arguments(self.made, parity)
                stream = self.world.streams[rank]
                self.made(**own, **more, out=outs[rank], stream=stream, pdl=False)
        for box in self.world.boxes:
            for kind in box.shape.boxes:
                words = box.view(kind.name, parity).reshape(-1).view(cp.uint32)
                assert bool((words == kind.sentinel).all()), kind.name
        return [out.get() for out in outs]

    def expected(self, given: list[Arrays], rank: int) -> np.ndarray:
        sources: Any = ([own[name] for own in given] for name in ("rows", "lse", "local_lengths"))
        mine = (given[rank][name] for name in ("w_uv", "gate", "lengths"))
        return dcp.dcp_value(*sources, *mine, rank=rank, q=self.q)

    def judge(self, given: list[Arrays], parity: int) -> list[np.ndarray]:
        outs = self.run(given, parity)
        for rank, out in enumerate(outs):
            verdict = tolerance.close(out, self.expected(given, rank))
            assert verdict.right, f"rank {rank}: {verdict}"
        return outs


ODD: dict[str, Callable[[Arrays], None]] = {
    "empty": lambda own: own["local_lengths"].fill(0),
    "NaN": lambda own: own["lse"].fill(np.nan),
    "-inf": lambda own: own["lse"].fill(-np.inf),
    "inf": lambda own: own["lse"].fill(np.inf),
    "1e4 apart": lambda own: own["lse"].__iadd__(np.float32(1e4)),
    "pairs that are the sentinel": lambda own: own["rows"].view(np.uint32).fill(PARTIAL_SENTINEL),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("dcp", [2, 4, 8])
def test_dcp_value_of_odd_sources(dcp: int, kind: str) -> None:
    subject = Tails(dcp, 2, 6, q=2)
    for parity in (0, 1, 0):
        given = subject.inputs()
        ODD[kind](given[parity])
        subject.judge(given, parity)


@pytest.mark.parametrize("kind", ["empty", "NaN", "-inf", "inf"])
@pytest.mark.parametrize("dcp", [2, 4, 8])
def test_dcp_value_without_sources_is_zero(dcp: int, kind: str) -> None:
    subject = Tails(dcp, 1, 3)
    given = subject.inputs()
    for own in given:
        ODD[kind](own)
    assert all((from_bf16(out) == 0).all() for out in subject.judge(given, 1))


@pytest.mark.parametrize(("dcp", "heads", "batch"), [(2, 8, 1), (2, 8, 16), (4, 2, 65), (8, 2, 16)])
def test_dcp_value(dcp: int, heads: int, batch: int) -> None:
    subject = Tails(dcp, heads, batch)
    for step in range(6):
        subject.judge(subject.inputs(), step % 2)


def attention(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows [tokens, heads, 512] and their LSE base 2 over ``keys`` [n, 576]."""
    scores = queries @ keys.T * 0.02 * np.log2(np.e)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp2(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / total @ keys[:, :512], (top + np.log2(total))[..., 0]


@pytest.mark.parametrize("dcp", [2, 4])
def test_a_layer_is_that_of_the_unsharded_context(dcp: int) -> None:
    """query, attention over each rank's share, dcp_value: 50 steps over both parities."""
    heads, batch, context = 2, 4, 96
    front, tail = Queries(dcp, heads, batch, "dense"), Tails(dcp, heads, batch)
    rng = np.random.default_rng(1)
    full = np.full(batch, 9, np.int32)
    for step in range(50):
        parity, keys = step % 2, rng.standard_normal((context, 576)).astype(np.float32)
        front.launch(step)
        gathered = front.world.boxes[0].view("mailbox", parity)[:batch].get()
        front.judge(step)
        queries = from_e4m3(gathered)
        given = tail.inputs()
        for rank, own in enumerate(given):
            rows, lse = attention(queries, keys[rank::dcp])
            own |= {"rows": to_bf16(rows), "lse": lse.astype(np.float32)}
            own |= {"local_lengths": full, "lengths": full}
        whole, _ = attention(queries, keys)
        for rank, out in enumerate(tail.run(given, parity)):
            own, mine = given[rank], slice(rank * heads, (rank + 1) * heads)
            latent = to_bf16(whole[:, mine])
            want = from_bf16(value.value(latent, own["w_uv"], own["gate"], full, q=1))
            largest = np.abs(want).max(axis=-1, keepdims=True)
            assert (np.abs(from_bf16(out) - want) <= 0.02 * largest).all(), (step, rank)


def watch(kernel: str) -> None:
    """Launch rank 0 alone, with a watchdog of 200 ms, and print what the host can then read."""
    cp = cupy()
    fields: Arrays = {"heads": 2, "batch": 4, "dcp": 2, "watchdog": 200, "release": False}
    if kernel == "dcp_value":
        tail = Tails(2, 2, 4)
        world, given = tail.world, {n: cp.asarray(a) for n, a in tail.inputs()[0].items()}
        given["out"] = cp.zeros((4, 256), cp.uint16)
    else:
        front = Queries(2, 2, 4, "dense", poll=kernel == "query")
        world, given = front.world, front.ranks[0] | {"qkv": front.sets[0]}
        fields |= {"transport": "unicast"} if kernel == "query" else {}
    made, box = make(kernel, **fields), world.boxes[0]
    box.view("mailbox", 1)[:, :2] = 0  # this rank's own
    given = {name: given[name] for name in made.plan.params.names if name in given}
    cp.cuda.Device().synchronize()
    assert box.overdue() is None
    start = time.monotonic()
    made(**given, **box.arguments(made, 1), stream=world.streams[0], pdl=False)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        world.streams[0].synchronize()
    print(f"{time.monotonic() - start:.2f} s: {box.overdue()}", flush=True)
    os._exit(0)  # the trap has ended the context: nothing can be freed


@pytest.mark.parametrize("kernel", ["query", "query_wait", "dcp_value"])
def test_a_rank_that_never_comes_trips_the_watchdog(kernel: str) -> None:
    """In a process of its own, which is left without a context."""
    code = f"from tests.gpu.test_dcp import watch; watch({kernel!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    text = r"([\d.]+) s: rank 1 never sent word \d+ of head \d, token [0-3], to (\w+) of rank 0"
    told = re.search(text, done.stdout)
    assert told and 0.2 <= float(told[1]) < 5, done.stdout
    assert told[2] in (("partials", "lse_box") if kernel == "dcp_value" else ("mailbox",))


SANITIZED = """
from tests.gpu.test_dcp import Queries
subject = Queries(2, 2, 16, "dense", poll=False)
for step in range(2):
    subject.launch(step)
    subject.judge(step)
print("judged")
"""


def test_compute_sanitizer_is_clean() -> None:
    """It runs kernels one after the other, so that this is the query without poll."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    command = [tool, "--error-exitcode", "3", sys.executable, "-c", SANITIZED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0 and "judged" in done.stdout, done.stdout[-4000:]
