"""The outcome of a rule for the values of outputs, each by itself or row by row together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
Chosen = NDArray[np.bool_]

WRONG = 1 << 32  # what a wrong value costs a row: more than all of its differences


@dataclass(frozen=True)
class Verdict:
    """Whether ``count`` values are right, and how near to wrong they are.

    Parameters
    ----------
    allowed
        The rule, in words.
    different, largest_step
        How many values have other bits than the reference, and how many steps of the type the
        farthest of them is off.
    wrong, first
        How many are wrong by the rule, and where the first of those is.
    by_share, worst_share
        How many are right only because they are closer than a share of their row's largest
        magnitude, and the largest such share.
    moved, farthest
        How many rows are right as those of a neighbour of what the reference computes, and how
        many steps away the farthest of these neighbours is.
    """

    allowed: str
    count: int
    different: int
    largest_step: int
    wrong: int
    first: tuple[int, ...] | None = None
    by_share: int = 0
    worst_share: float = 0.0
    moved: int = 0
    farthest: int = 0

    @property
    def right(self) -> bool:
        return self.wrong == 0

    @property
    def share_exact(self) -> float:
        """The share of values with the very bits of the reference."""
        return 1 - self.different / max(self.count, 1)

    def data(self) -> dict[str, Any]:
        """The verdict as JSON says it."""
        held = asdict(self)
        return {"values": held.pop("count"), "share_exact": self.share_exact, **held}

    @property
    def reason(self) -> str:
        """What it is right or wrong by."""
        if not self.right:
            where = f"the first at {self.first}"
            return f"WRONG: {self.wrong:,} values, {where}; allowed: {self.allowed}"
        text = f"right: {self.allowed}"
        if self.by_share:
            text += f"; {self.by_share:,} by their share, the worst {self.worst_share:.2%}"
        if self.moved:
            text += f"; {self.moved:,} by a neighbour, the farthest {self.farthest} off"
        return text

    def __str__(self) -> str:
        exact = f"{self.share_exact:.4%} of {self.count:,} exact"
        return f"{exact}, largest step {self.largest_step}, {self.reason}"


def joined(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for the values of several by one rule."""
    found = list(verdicts)
    return Verdict(
        allowed=found[0].allowed,
        count=sum(verdict.count for verdict in found),
        different=sum(verdict.different for verdict in found),
        largest_step=max(verdict.largest_step for verdict in found),
        wrong=sum(verdict.wrong for verdict in found),
        first=next((verdict.first for verdict in found if verdict.first), None),
        by_share=sum(verdict.by_share for verdict in found),
        worst_share=max(verdict.worst_share for verdict in found),
        moved=sum(verdict.moved for verdict in found),
        farthest=max(verdict.farthest for verdict in found),
    )


@dataclass(frozen=True)
class Marks:
    """What a rule says of the values whose bits differ: in which ``rows`` and ``columns`` they are,
    how many steps off, which share of the row's largest magnitude off where only that makes them
    right (else 0), and whether they are wrong."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    steps: NDArray[np.int64]
    shares: NDArray[np.float64]
    wrong: Chosen

    def of(self, chosen: Chosen) -> Marks:
        """Those of the ``chosen`` rows."""
        return Marks(*(getattr(self, each.name)[chosen[self.rows]] for each in fields(self)))

    def cost(self, rows: int) -> NDArray[np.int64]:
        """How far each row is off: first by what is wrong in it, then by what differs."""
        found = np.zeros(rows, np.int64)
        np.add.at(found, self.rows, np.where(self.wrong, WRONG, 1))
        return found


class Rule(Protocol):
    """What is right."""

    def allowed(self, got: Bits) -> str:
        """In words, for values of the type of ``got``."""

    def marks(self, got: Bits, want: Bits) -> Marks:
        """What it says of values [rows, columns]."""


@dataclass(frozen=True)
class Judged:
    """An output: what was ``got``, by which rule it is judged, and what may be wanted: first what
    the reference computes, then its neighbours in pairs, the nearest first."""

    rule: Rule
    got: Bits
    wants: tuple[Bits, ...]

    @property
    def rows(self) -> int:
        return int(np.prod(self.got.shape[:-1]))

    def marks(self) -> list[Marks]:
        """What the rule says, compared with each of what may be wanted."""
        for want in self.wants:
            if (self.got.shape, self.got.dtype) != (want.shape, want.dtype):
                text = " and ".join(f"{a.dtype}{list(a.shape)}" for a in (self.got, want))
                raise ValueError(f"cannot compare {text}")
        columns = self.got.shape[-1]
        flat = [bits.reshape(-1, columns) for bits in (self.got, *self.wants)]
        return [self.rule.marks(flat[0], want) for want in flat[1:]]

    def first(self, marks: Marks) -> tuple[int, ...] | None:
        """Where the first wrong value is."""
        wrong = marks.rows[marks.wrong] * self.got.shape[-1] + marks.columns[marks.wrong]
        if not wrong.size:
            return None
        return tuple(map(int, np.unravel_index(wrong.min(), self.got.shape)))


def together(outputs: Sequence[Judged], near: str = "") -> list[Verdict]:
    """Verdicts on outputs of as many rows each, judged row by row.

    A row of all outputs is that of one and the same neighbour, which is the one that fits best.
    ``near`` says in words what the neighbours are.
    """
    marks = [each.marks() for each in outputs]
    costs = [sum(each.cost(outputs[0].rows) for each in way) for way in zip(*marks, strict=True)]
    best, least = np.argmin(costs, axis=0), np.min(costs, axis=0)
    distances = np.where(least < WRONG, (best + 1) // 2, 0)
    made = []
    for output, ways in zip(outputs, marks, strict=True):
        kept = [way.of(best == number) for number, way in enumerate(ways)]
        shares = np.concatenate([each.shares for each in kept])
        first = min(filter(None, map(output.first, kept)), default=None)
        verdict = Verdict(
            allowed=", ".join(filter(None, (output.rule.allowed(output.got), near))),
            count=output.got.size,
            different=len(ways[0].rows),
            largest_step=int(ways[0].steps.max(initial=0)),
            wrong=sum(int(each.wrong.sum()) for each in kept),
            first=first,
            by_share=int(np.count_nonzero(shares)),
            worst_share=float(shares.max(initial=0)),
            moved=int(np.count_nonzero(distances)),
            farthest=int(distances.max(initial=0)),
        )
        made.append(verdict)
    return made


def judge(output: Judged) -> Verdict:
    """The verdict on an output by itself."""
    (verdict,) = together([output])
    return verdict
