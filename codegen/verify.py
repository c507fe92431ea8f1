"""Kernels run on the GPU here with fresh random inputs, and judged against the reference.

All outputs are poisoned before the launches; what no expectation covers must stay so.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import judge, nvml, report
from .api import Kernel, kernel
from .errors import NotBuiltError
from .expected import FAMILIES, Expected
from .judge import Verdict
from .params import ANY, Array
from .plan import Plan
from .samples import Arrays, Rng, Sample
from .schema import Config
from .single import refuse_ranks

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
        return f"{head}, seed {self.seed}\n{report.aligned(rows)}"


def _row(name: str, verdict: Verdict) -> tuple[str, ...]:
    wrong = f"WRONG: {verdict.wrong:,} values, the first at {verdict.first}"
    return (
        f"  {name}",
        f"{verdict.count:,} values",
        f"{verdict.share_exact:.4%} exact",
        f"largest step {verdict.largest_step}",
        "right" if verdict.right else wrong,
    )


def verify(
    config: Config, *, seed: int | None = None, rounds: int = 1, arch: str | None = None
) -> Outcome:
    """Run the kernel of ``config`` on the GPU here, in ``rounds`` rounds of fresh inputs each.

    Raises
    ------
    DeviceError
        When there is no GPU that kgen has a target for.
    NotBuiltError
        When there is no check of the family yet, or the kernel waits for other ranks.
    """
    refuse_ranks(config, "verify")
    if config.kernel not in FAMILIES:
        raise NotBuiltError("kernel", config.kernel, f"verify has {', '.join(FAMILIES)}")
    nvml.require()
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    made = kernel(config, arch)
    salt = zlib.crc32(config.slug.encode())
    found = [trial(made, np.random.default_rng((seed, n, salt))) for n in range(rounds)]
    return Outcome.of(config, made.plan.target.name, seed, found)


def trial(made: Kernel, rng: Rng) -> tuple[Sample, dict[str, Verdict]]:
    """One round: fresh inputs, and a verdict for each output of ``made``."""
    config = made.plan.config
    family = FAMILIES[config.kernel]
    sample = family.sample(config, rng)
    held = run(made, sample)  # before the reference, which takes its time
    return sample, check(made.plan, family.expect(config, sample), held)


def run(made: Kernel, sample: Sample) -> Arrays:
    """What the outputs hold, gaps included, after the launches of ``sample``."""
    import cupy

    table = made.plan.params.arrays
    held = {name: cupy.asarray(array) for name, array in poisoned(made.plan, sample).items()}
    given = {a.name: cupy.asarray(sample.arrays[a.name]) for a in table if a.role == "in"}
    given |= {name: given[name][index] for name, index in sample.inner.items()}
    given |= {a.name: held[a.name][inside(a, sample)] for a in table if a.role != "in"}
    cupy.cuda.Device().synchronize()  # a late kernel's inputs are complete before it starts
    for rows in sample.launches:
        arguments: dict[str, Any] = {**sample.scalars, "num_rows": len(rows)}
        for array in table:
            arguments[array.name] = given[array.name][part(array, rows.start)]
        made(**arguments)
    cupy.cuda.Device().synchronize()
    return {name: array.get() for name, array in held.items()}


def part(array: Array, start: int) -> tuple[Any, ...]:
    """The index of ``array`` that leaves out the token rows before ``start``."""
    return tuple(slice(start // axis.per if axis.rows else 0, None) for axis in array.axes)


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
    verdicts["elsewhere"] = judge.exact(everything, np.full_like(everything, POISON))
    return verdicts


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
