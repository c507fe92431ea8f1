"""Kernels run on the GPU here with fresh random inputs, and judged against the reference.

A family joins with an entry of :data:`FAMILIES`: what makes its inputs, and what its outputs must
hold. All outputs are poisoned before the launches; what no expectation covers must stay so.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import judge, nvml, reference, report, samples
from .api import Kernel, kernel
from .errors import NotBuiltError
from .judge import Verdict
from .params import ANY, Array
from .plan import Plan
from .samples import Arrays, Rng, Sample
from .schema import Config, Query, QueryNorm

POISON = 0xFF  # of bytes: no output byte is 0xFF, and as BF16 it is a NaN that no kernel stores

Bits: TypeAlias = NDArray[Any]
Rule: TypeAlias = Callable[[Bits, Bits], Verdict]


def whole(bits: Bits) -> list[Bits]:
    """An output of one type."""
    return [bits]


@dataclass(frozen=True)
class Expected:
    """The output ``array`` must hold ``want`` at the index ``where``, by ``rule``; each of its
    ``parts`` is judged by itself."""

    name: str
    array: str
    where: tuple[Any, ...]
    want: Bits
    rule: Rule
    parts: Callable[[Bits], list[Bits]] = whole


@dataclass(frozen=True)
class Family:
    """How the kernels of a family are checked."""

    sample: Callable[[Any, Rng], Sample]
    expect: Callable[[Any, Sample], Iterable[Expected]]


def _query(config: Query, sample: Sample) -> Iterable[Expected]:
    given, live = sample.arrays, sample.live
    want = reference.query(
        given["qkv"][live],
        **{name: given[name] for name in ("w_qa", "w_kva", "w_qb", "w_uk")},
        q_scale_inv=float(given["q_scale_inv"][0]),
        k_scale=float(given["k_scale" if config.dsa else "k_scale_inv"][0]),
        eps=sample.scalars["eps"],
        dsa=config.dsa,
        fp8=config.fp8,
        nvfp4=config.nvfp4,
    )
    yield Expected("query", "out", (live,), want.query, judge.close)
    slots, page = given["slots"][live], sample.extents["cache"][1]
    taken = slots >= 0
    where = (slots[taken] // page, slots[taken] % page)
    yield Expected("cache rows", "cache", where, want.rows[taken], judge.nearly_exact, kv_parts)
    if config.dsa and config.store_qc:
        yield Expected("q_c", "q_c", (live,), want.q_c, judge.nearly_exact)


def _query_norm(config: QueryNorm, sample: Sample) -> Iterable[Expected]:
    qkv, w_qa = sample.arrays["qkv"][sample.live], sample.arrays["w_qa"]
    want = reference.query_norm(qkv, w_qa=w_qa, eps=sample.scalars["eps"])
    yield Expected("q_c", "q_c", (sample.live,), want, judge.nearly_exact)


FAMILIES: dict[str, Family] = {
    "query": Family(samples.query, _query),
    "query_norm": Family(samples.query_norm, _query_norm),
}


def kv_parts(rows: Bits) -> list[Bits]:
    """The parts of KV rows, each in a type of its own whose steps count."""
    rows = np.ascontiguousarray(rows)
    if rows.shape[-1] == 656:
        tail = np.ascontiguousarray(rows[:, 512:]).view(np.uint16)
        return [rows[:, :512], tail[:, 1:8:2], tail[:, 0:8:2], tail[:, 8:]]
    if rows.shape[-1] == 352:
        codes = np.concatenate((rows[:, :256] & 15, rows[:, :256] >> 4), axis=-1)
        return [codes & 7 | (codes & 8) << 4, rows[:, 256:]]  # as E4M3: neighbours stay neighbours
    return [rows]


@dataclass(frozen=True)
class Outcome:
    """How a kernel did: a verdict for each output, and for all other bytes of the outputs."""

    slug: str
    arch: str
    seed: int
    launches: int
    rows: int
    verdicts: dict[str, Verdict]

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
        When there is no check of the family yet.
    """
    family = FAMILIES.get(config.kernel)
    if family is None:
        raise NotBuiltError("kernel", config.kernel, f"verify has {', '.join(FAMILIES)}")
    nvml.require()
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    made, found = kernel(config, arch), []
    for number in range(rounds):
        rng = np.random.default_rng((seed, number, zlib.crc32(config.slug.encode())))
        sample = family.sample(config, rng)
        held = run(made, sample)
        found.append((sample, check(made.plan, family.expect(config, sample), held)))
    return Outcome(
        slug=config.slug,
        arch=made.plan.target.name,
        seed=seed,
        launches=sum(len(sample.launches) for sample, _ in found),
        rows=sum(len(sample.live) for sample, _ in found),
        verdicts={name: joined(v[name] for _, v in found) for name in found[0][1]},
    )


def run(made: Kernel, sample: Sample) -> Arrays:
    """What the outputs hold, gaps included, after the launches of ``sample``."""
    import cupy

    table = made.plan.params.arrays
    held = {name: cupy.asarray(array) for name, array in poisoned(made.plan, sample).items()}
    given = {a.name: cupy.asarray(sample.arrays[a.name]) for a in table if a.role == "in"}
    given |= {a.name: held[a.name][inside(a, sample)] for a in table if a.role != "in"}
    cupy.cuda.Device().synchronize()  # a late kernel's inputs are complete before it starts
    for rows in sample.launches:
        arguments: dict[str, Any] = {**sample.scalars, "num_rows": len(rows)}
        for array in table:
            arguments[array.name] = given[array.name][_from(array, rows.start)]
        made(**arguments)
    cupy.cuda.Device().synchronize()
    return {name: array.get() for name, array in held.items()}


def _from(array: Array, start: int) -> tuple[Any, ...]:
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
        size = expected.want.shape[1:]
        index = (*expected.where, *(slice(extent) for extent in size))
        got = np.ascontiguousarray(held[expected.array][index])
        pairs = zip(expected.parts(got), expected.parts(expected.want), strict=True)
        verdicts[expected.name] = joined(expected.rule(*pair) for pair in pairs)
        untouched[expected.array][index] = False
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
