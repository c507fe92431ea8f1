"""Kernels of every rank on the CPU: the inputs of each, what each wrote, and the mailboxes.

The ranks share a sample's rows, and each has a block of its heads. What a rank computes is judged
as that of a kernel without DCP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dcp.layout import PARITIES, Shape
from ..dcp.mailboxes import Mailboxes
from ..dims import KV_LORA
from ..emulator.executor import Emulated, emulate
from ..emulator.launch import within
from ..emulator.ranks import boxes_of, launch, words
from ..plan import Plan, plan
from ..plan.mailbox import Mailed, query_dtype
from ..reference import dcp
from ..schema import DcpValue, Query, after_dcp, alone, make
from ..targets import Target
from . import families, outcome, samples, tolerance
from .judge import Verdict, joined
from .samples import NAN, Arrays, Rng, Sample

RANK_ROWS = 5  # of a sample, about: all ranks run them
SPARE = 2  # rows of a mailbox beyond the batch
CUT = {"w_qb": 0, "w_uk": 0, "w_uv": 0, "gate": 1}  # the axis of each array that has heads

Verdicts = dict[str, Verdict]


@dataclass
class Shards:
    """A kernel of every rank. ``alone`` is the plan of one without DCP, ``sources`` are inputs
    that it has not; ``mailed`` are verdicts on mailboxes."""

    made: Emulated
    boxes: Sequence[Mailboxes]
    alone: Plan
    parts: list[Sample]
    sources: list[Arrays]
    held: list[Arrays] = field(init=False)
    mailed: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held = [outcome.poisoned(self.alone, part) for part in self.parts]

    @property
    def launches(self) -> tuple[range, ...]:
        """The rows of each launch."""
        return self.parts[0].launches

    def keep(self, launches: int) -> None:
        """Forget all launches but the first."""
        self.parts = [replace(part, launches=part.launches[:launches]) for part in self.parts]

    def launch(self, number: int, parity: int, seed: int, lazy: bool) -> None:
        """Launch ``number`` of the sample, on every rank."""
        rows = self.launches[number]
        given = [self._arguments(rank, rows) for rank in range(len(self.boxes))]
        launch(self.made, self.boxes, given, parity, seed=seed, lazy=lazy)

    def _arguments(self, rank: int, rows: range) -> dict[str, Any]:
        part, held = self.parts[rank], self.held[rank]
        table = {array.name: array for array in self.alone.params.arrays}
        known = {name: part.view(name) for name in part.arrays} | self.sources[rank]
        known |= {name: held[name][outcome.inside(table[name], part)] for name in held}
        taken = [array for array in self.made.plan.params.arrays if array.name in known]
        arrays = {array.name: known[array.name][within(array, rows)] for array in taken}
        return {**part.scalars, "num_rows": len(rows), **arrays}

    def verdicts(self) -> Verdicts:
        """What was written, by all ranks together."""
        expect = families.of(self.alone.config.kernel).expect
        pairs = zip(self.parts, self.held, strict=True)
        each = [outcome.check(self.alone, expect(self.alone, part), held) for part, held in pairs]
        found = {name: joined(one[name] for one in each) for name in each[0]}
        return found | {"mailboxes": joined(self.mailed)}


def split(single: Any, ranks: int, rng: Rng, rows: int) -> list[Sample]:
    """A sample for each rank of what ``single`` computes: a block of the heads, the rows of all."""
    wide: Any = single.model_copy(update={"heads": ranks * single.heads})
    whole: Sample = families.of(single.kernel).sample(wide, rng, rows)
    cut = {
        name: np.split(whole.view(name), ranks, axis)
        for name, axis in CUT.items()
        if name in whole.arrays
    }
    blocks = [{name: pieces[rank] for name, pieces in cut.items()} for rank in range(ranks)]
    return [replace(whole, arrays=whole.arrays | own, inner={}) for own in blocks]


class Queries(Shards):
    """The query of every rank; where it does not poll, ``query_wait`` follows."""

    @classmethod
    def of(cls, made: Emulated, boxes: Sequence[Mailboxes], rng: Rng, rows: int) -> Queries:
        config: Any = made.plan.config
        single = plan(alone(config), made.plan.target, made.plan.schedule)
        return cls(
            made, boxes, single, split(single.config, config.dcp, rng, rows), [{} for _ in boxes]
        )

    def step(self, number: int, parity: int, seed: int, lazy: bool) -> None:
        """Launch, and judge what has come to every rank."""
        self.launch(number, parity, seed, lazy)
        rows, config = self.launches[number], self.made.plan.config
        if isinstance(config, Query) and not config.poll:
            given = [{"num_rows": len(rows)}] * config.dcp
            wait = emulate(wait_of(config, self.made.plan.target))
            launch(wait, self.boxes, given, parity, seed=seed, lazy=lazy)
        heads = self.boxes[0].shape.heads
        outs = [held["out"][rows.start : rows.stop, :heads] for held in self.held]
        want = np.concatenate(outs, axis=1)
        self.mailed += [tolerance.exact(sent(box, parity, rows), want) for box in self.boxes]


def wait_of(config: Query, target: Target) -> Plan:
    """The plan of the query_wait that follows a query without ``poll``."""
    return plan(make("query_wait", after_dcp("query_wait", dict(config))), target)


class Tails(Shards):
    """The dcp_value of every rank."""

    @classmethod
    def of(cls, made: Emulated, boxes: Sequence[Mailboxes], rng: Rng, rows: int) -> Tails:
        config: Any = made.plan.config
        single = plan(alone(config), made.plan.target)
        parts = split(single.config, config.dcp, rng, rows)
        return cls(made, boxes, single, parts, [_source(config, parts[0], rng) for _ in boxes])

    def step(self, number: int, parity: int, seed: int, lazy: bool) -> None:
        """Launch; afterwards all mailboxes of both parities are full of sentinels again."""
        self.launch(number, parity, seed, lazy)
        self.mailed.append(idle(self.boxes))

    def verdicts(self) -> Verdicts:
        """The outputs, judged as those of ``value`` after the reference's merge."""
        q = self.parts[0].q
        with np.errstate(invalid="ignore"):  # rows of no launch are NaN
            found = [
                dcp.sent(own["rows"], own["lse"], own["local_lengths"], q) for own in self.sources
            ]
            merged = dcp.merge([rows for rows, _ in found], [lse for _, lse in found])
        latents = np.split(merged, len(self.parts), axis=1)
        self.parts = [
            replace(part, arrays=part.arrays | {"latent": latent})
            for part, latent in zip(self.parts, latents, strict=True)
        ]
        return super().verdicts()


def _source(config: DcpValue, sample: Sample, rng: Rng) -> Arrays:
    """What a rank's attention gives: every tenth LSE is no number, two of five requests have no
    keys there; rows have zeros of either sign, those of no launch are NaN."""
    live, heads = sample.live, config.dcp * config.heads
    rows = np.full((sample.rows, heads, KV_LORA), NAN, np.uint16)
    bits = samples.bf16(rng, len(live), heads, KV_LORA)
    rows[live] = np.where(rng.random(bits.shape) < 0.05, bits & 0x8000, bits)
    numbers = 5 * rng.standard_normal((len(live), heads), np.float32)
    odd = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), numbers.shape)
    lse = np.full((sample.rows, heads), np.nan, np.float32)
    lse[live] = np.where(rng.random(numbers.shape) < 0.1, odd, numbers)
    lengths = rng.choice(np.array([-1, 0, 3, 7, 9], np.int32), sample.rows // sample.q)
    return {"rows": rows, "lse": lse, "local_lengths": lengths}


def mailboxes(config: Mailed) -> list[Mailboxes]:
    """The mailboxes of every rank, for kernels of the shape of ``config``."""
    wide = query_dtype(config) == "bf16"
    capacity = config.batch + SPARE
    return boxes_of(Shape(config.dcp, config.heads, capacity, config.q_heads, wide))


def sent(box: Mailboxes, parity: int, rows: range) -> NDArray[Any]:
    """The part of a query mailbox that a launch of ``rows`` fills."""
    view: NDArray[Any] = box.view("mailbox", parity)
    return view[: len(rows), : box.shape.ranks * box.shape.heads]


def empty(boxes: Sequence[Mailboxes], parity: int, rows: range) -> None:
    """Refill the query mailboxes as their reader does."""
    for box in boxes:
        held = sent(box, parity, rows)
        held[...] = np.iinfo(held.dtype).max


def idle(boxes: Sequence[Mailboxes]) -> Verdict:
    """Whether all mailboxes of both parities are full of sentinels."""
    kinds = [(box, kind, p) for box in boxes for kind in box.shape.boxes for p in range(PARITIES)]
    held = [(words(box.view(kind.name, parity)), kind.sentinel) for box, kind, parity in kinds]
    return joined(tolerance.exact(got, np.full_like(got, word)) for got, word in held)


def mailed(made: Emulated) -> Mailed:
    """The configuration of a kernel of several ranks."""
    config = made.plan.config
    assert isinstance(config, Mailed)
    return config
