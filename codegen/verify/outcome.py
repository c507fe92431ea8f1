"""How a kernel did: verdicts on its outputs, and on all other bytes of their memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..plan import ANY, Array, Plan
from ..schema import Config
from ..tables import aligned
from . import tolerance
from .expected import Expected
from .samples import Arrays, Sample
from .tolerance import Verdict

POISON = 0xFF  # of bytes: no output byte is 0xFF, and as BF16 it is a NaN that no kernel stores


@dataclass(frozen=True)
class Outcome:
    """How a kernel did: a verdict for each output, and for all other bytes of the outputs."""

    slug: str
    arch: str
    seed: int
    launches: int
    rows: int
    verdicts: dict[str, Verdict]

    @classmethod
    def of(
        cls, config: Config, arch: str, seed: int, trials: list[tuple[Sample, dict[str, Verdict]]]
    ) -> Outcome:
        """That of all ``trials`` of ``config`` together."""
        return cls(
            slug=config.slug,
            arch=arch,
            seed=seed,
            launches=sum(len(sample.launches) for sample, _ in trials),
            rows=sum(len(sample.live) for sample, _ in trials),
            verdicts={name: joined(v[name] for _, v in trials) for name in trials[0][1]},
        )

    @property
    def right(self) -> bool:
        return all(verdict.right for verdict in self.verdicts.values())

    def data(self) -> dict[str, Any]:
        """The outcome as JSON says it."""
        listed = {
            name: {
                "values": verdict.count,
                "share_exact": verdict.share_exact,
                "largest_step": verdict.largest_step,
                "wrong": verdict.wrong,
            }
            for name, verdict in self.verdicts.items()
        }
        head = {"slug": self.slug, "arch": self.arch, "seed": self.seed, "right": self.right}
        return head | {"launches": self.launches, "rows": self.rows, "outputs": listed}

    def text(self) -> str:
        """The outcome for people."""
        head = f"{self.slug} for {self.arch}: {self.rows} rows in {self.launches} launches"
        rows = [_row(name, verdict) for name, verdict in self.verdicts.items()]
        return f"{head}, seed {self.seed}\n{aligned(rows)}"


def _row(name: str, verdict: Verdict) -> tuple[str, ...]:
    wrong = f"WRONG: {verdict.wrong:,} values, the first at {verdict.first}"
    return (
        f"  {name}",
        f"{verdict.count:,} values",
        f"{verdict.share_exact:.4%} exact",
        f"largest step {verdict.largest_step}",
        "right" if verdict.right else wrong,
    )


def joined(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for the values of several."""
    found = list(verdicts)
    return Verdict(
        count=sum(verdict.count for verdict in found),
        different=sum(verdict.different for verdict in found),
        largest_step=max(verdict.largest_step for verdict in found),
        wrong=sum(verdict.wrong for verdict in found),
        first=next((verdict.first for verdict in found if verdict.first), None),
    )


def poisoned(plan: Plan, sample: Sample) -> Arrays:
    """The outputs' memory before the launches: poison, with gaps where strides allow them."""
    made = {}
    for array in plan.params.arrays:
        if array.role != "in":
            dtype = np.dtype(f"u{array.itemsize}")
            poison = int.from_bytes(bytes([POISON] * array.itemsize), "little")
            made[array.name] = np.full(_padded(array, _shape(array, sample)), poison, dtype)
    return made


def inside(array: Array, sample: Sample) -> tuple[slice, ...]:
    """The index of an output without the gaps."""
    return tuple(slice(extent) for extent in _shape(array, sample))


def part(array: Array, start: int) -> tuple[Any, ...]:
    """The index of ``array`` that leaves out the token rows before ``start``."""
    return tuple(slice(start // axis.per if axis.rows else 0, None) for axis in array.axes)


def _shape(array: Array, sample: Sample) -> tuple[int, ...]:
    leading = sample.extents.get(array.name, ())
    rest = array.axes[len(leading) :]
    assert not any(axis.extent == ANY and not axis.rows for axis in rest), array.name
    return (*leading, *(sample.rows if axis.rows else axis.extent for axis in rest))


def _padded(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with the least gap after each item of the outermost axis, if that has a stride."""
    if not array.axes[0].stride:
        return shape
    first, second, *rest = shape
    unit = int(np.prod(rest)) * array.itemsize
    second += 1
    while second * unit % array.align:
        second += 1
    return (first, second, *rest)


def check(plan: Plan, expectations: Iterable[Expected], held: Arrays) -> dict[str, Verdict]:
    """Judge what the outputs hold, and that nothing else in their memory was written."""
    table = {array.name: array for array in plan.params.arrays}
    verdicts: dict[str, Verdict] = {}
    untouched = {name: np.ones(array.shape, bool) for name, array in held.items()}
    for expected in expectations:
        verdicts[expected.name] = joined(expected.verdicts(held[expected.array]))
        expected.view(untouched[expected.array])[expected.index] = False
    rest = [held[name][mask].view(np.uint8) for name, mask in untouched.items() if name in table]
    everything = np.concatenate(rest)
    verdicts["elsewhere"] = tolerance.exact(everything, np.full_like(everything, POISON))
    return verdicts
