"""What outputs must hold for a sample, and by which rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from .judge import Bits, Judged, Rule, Verdict, together
from .samples import Arrays


def as_held(bits: Bits) -> Bits:
    """An array as it is."""
    return bits


def singles(bits: Bits) -> Bits:
    """Every value a row of its own."""
    return bits[..., None]


@dataclass(frozen=True)
class Expected:
    """The output ``array``, seen through ``view``, must hold ``want`` at the index ``where``, by
    ``rule``, which is asked of the ``values`` of both.

    A row (the last axis of the values) may be that of one of ``others`` as well, neighbours of
    ``want`` in pairs, the nearest first; ``near`` says in words what they are. Outputs with the
    same ``tie`` follow one another and are right as those of one neighbour, row by row.
    """

    name: str
    array: str
    where: tuple[Any, ...]
    want: Bits
    rule: Rule
    values: Callable[[Bits], Bits] = as_held
    view: Callable[[Bits], Bits] = as_held
    others: tuple[Bits, ...] = ()
    near: str = ""
    tie: str = ""

    @property
    def index(self) -> tuple[Any, ...]:
        """The index of what is judged, in the view."""
        return (*self.where, *(slice(extent) for extent in self.want.shape[1:]))

    def judged(self, held: Bits) -> Judged:
        """What the array holds, beside what it may hold."""
        got = np.ascontiguousarray(self.view(held)[self.index])
        return Judged(self.rule, self.values(got), tuple(map(self.values, self.wants)))

    @property
    def wants(self) -> tuple[Bits, ...]:
        """All that is right."""
        return self.want, *self.others


def verdicts(expectations: Iterable[Expected], held: Arrays) -> Iterator[tuple[Expected, Verdict]]:
    """What the rules say of what the arrays hold."""
    for _, group in groupby(expectations, key=lambda each: each.tie or each.name):
        tied = list(group)
        found = together([each.judged(held[each.array]) for each in tied], tied[0].near)
        yield from zip(tied, found, strict=True)


def neighbours(ulps: int) -> Iterator[int]:
    """0, then the distances up to ``ulps`` in pairs, the nearest first."""
    yield 0
    for distance in range(1, ulps + 1):
        yield from (distance, -distance)


def as_e4m3(codes: Bits) -> Bits:
    """E2M1 codes as E4M3 bits in which neighbours stay neighbours."""
    return codes & 7 | (codes & 8) << 4
