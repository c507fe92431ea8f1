"""What an output must hold for a sample, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .tolerance import Verdict

Bits: TypeAlias = NDArray[Any]
Rule: TypeAlias = Callable[[Bits, Bits], Verdict]
Parts: TypeAlias = Callable[[Bits], list[Bits]]


def whole(bits: Bits) -> list[Bits]:
    """An output of one type."""
    return [bits]


def as_held(bits: Bits) -> Bits:
    """An array as it is."""
    return bits


@dataclass(frozen=True)
class Expected:
    """The output ``array``, seen through ``view``, must hold ``want`` at the index ``where``, by
    ``rule``; each of its ``parts`` is judged by itself. A row (the last axis of a part) may be
    that of one of ``others`` as well."""

    name: str
    array: str
    where: tuple[Any, ...]
    want: Bits
    rule: Rule
    parts: Parts = whole
    view: Callable[[Bits], Bits] = as_held
    others: tuple[Bits, ...] = ()

    @property
    def index(self) -> tuple[Any, ...]:
        """The index of what is judged, in the view."""
        return (*self.where, *(slice(extent) for extent in self.want.shape[1:]))

    def verdicts(self, held: Bits) -> list[Verdict]:
        """What ``rule`` says of each part of the array as it is held."""
        got = self.parts(np.ascontiguousarray(self.view(held)[self.index]))
        wants = zip(*map(self.parts, (self.want, *self.others)), strict=True)
        pairs = zip(got, wants, strict=True)
        return [self.rule(part, nearest(part, allowed)) for part, allowed in pairs]


def nearest(got: Bits, wants: tuple[Bits, ...]) -> Bits:
    """For each row the one of ``wants`` that fewest values of ``got`` differ from."""
    if len(wants) == 1:
        return wants[0]
    apart = np.stack([(got != want).sum(axis=-1) for want in wants])
    return np.asarray(np.choose(apart.argmin(axis=0)[..., None], wants))


def as_e4m3(codes: Bits) -> Bits:
    """E2M1 codes as E4M3 bits in which neighbours stay neighbours."""
    return codes & 7 | (codes & 8) << 4
