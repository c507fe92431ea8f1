"""How a kernel did: verdicts on its outputs, and on all other bytes of their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..plan import ANY, Array, Plan
from ..schema import Config
from ..tables import aligned
from . import tolerance
from .expected import Expected, verdicts
from .judge import Verdict, joined
from .samples import Arrays, Sample

POISON = 0xFF  # of bytes: no output byte is 0xFF, and as BF16 it is a NaN that no kernel stores


@dataclass(frozen=True)
class Trial:
    """One seed: its launches, their rows, and a verdict for each output and for all other bytes."""

    seed: int
    launches: int
    rows: int
    verdicts: dict[str, Verdict]

    @classmethod
    def of(cls, seed: int, sample: Sample, verdicts: dict[str, Verdict]) -> Trial:
        return cls(seed, len(sample.launches), len(sample.live), verdicts)

    @property
    def right(self) -> bool:
        return all(verdict.right for verdict in self.verdicts.values())


@dataclass(frozen=True)
class Outcome:
    """How a kernel did in all trials from ``seed`` on: the verdicts of those that came to an end,
    the ``errors`` of the others, and the seeds of those that were ``wrong``."""

    slug: str
    arch: str
    seed: int
    launches: int
    rows: int
    verdicts: dict[str, Verdict]
    wrong: tuple[int, ...] = ()
    errors: tuple[Exception, ...] = ()

    @classmethod
    def of(
        cls, config: Config, arch: str, seed: int, results: Sequence[Trial | Exception]
    ) -> Outcome:
        """That of all trials of ``config`` together."""
        trials = [each for each in results if isinstance(each, Trial)]
        names = trials[0].verdicts if trials else ()
        return cls(
            slug=config.slug,
            arch=arch,
            seed=seed,
            launches=sum(trial.launches for trial in trials),
            rows=sum(trial.rows for trial in trials),
            verdicts={name: joined(each.verdicts[name] for each in trials) for name in names},
            wrong=tuple(trial.seed for trial in trials if not trial.right),
            errors=tuple(each for each in results if isinstance(each, Exception)),
        )

    @property
    def right(self) -> bool:
        return not self.wrong and not self.errors

    def data(self) -> dict[str, Any]:
        """The outcome as JSON says it."""
        return {
            **{"slug": self.slug, "arch": self.arch, "seed": self.seed, "right": self.right},
            **{"launches": self.launches, "rows": self.rows},
            "outputs": {name: verdict.data() for name, verdict in self.verdicts.items()},
            "wrong_seeds": list(self.wrong),
            "errors": [str(error) for error in self.errors],
        }

    def text(self) -> str:
        """The outcome for people."""
        head = f"{self.slug} for {self.arch}: {self.rows} rows in {self.launches} launches"
        lines = [f"{head}, seed {self.seed}"]
        if self.verdicts:
            lines.append(aligned(_row(name, verdict) for name, verdict in self.verdicts.items()))
        if self.wrong:
            lines.append(f"  wrong with seed {', '.join(map(str, self.wrong))}")
        lines += [f"  FAILED: {text}" for text in dict.fromkeys(map(str, self.errors))]
        return "\n".join(lines)


def _row(name: str, verdict: Verdict) -> tuple[str, ...]:
    return (
        f"  {name}",
        f"{verdict.count:,} values",
        f"{verdict.share_exact:.4%} exact",
        f"largest step {verdict.largest_step}",
        verdict.reason,
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
    found: dict[str, Verdict] = {}
    untouched = {name: np.ones(array.shape, bool) for name, array in held.items()}
    for expected, verdict in verdicts(expectations, held):
        found[expected.name] = verdict
        expected.view(untouched[expected.array])[expected.index] = False
    rest = [held[name][mask].view(np.uint8) for name, mask in untouched.items() if name in table]
    everything = np.concatenate(rest)
    found["elsewhere"] = tolerance.exact(everything, np.full_like(everything, POISON))
    return found
