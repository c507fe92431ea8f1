"""The rules that judge outputs against a reference, value by value.

``got`` and ``want`` are bit patterns: E4M3 as uint8, BF16 as uint16. A row is the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..dims import ROPE
from .judge import Bits, Chosen, Judged, Marks, Verdict, judge

ROTATED = 0.012  # a share for the rotated columns of a BF16 query: both of a pair may flip


@dataclass(frozen=True)
class Format:
    """An output type: its dtype, its largest magnitude that is no NaN, and what counts as close in
    it: so many ``steps``, or less than a ``share`` of the row's largest magnitude. Only NaNs of the
    bits ``nan`` are right, where given."""

    dtype: Any
    last: int
    steps: int
    share: float
    nan: int | None = None

    def values(self, bits: Bits) -> NDArray[np.float64]:
        """What ``bits`` mean."""
        with np.errstate(invalid="ignore"):
            return np.asarray(bits.view(self.dtype).astype(np.float64))

    def nans(self, bits: Bits) -> Chosen:
        """Where ``bits`` are a NaN."""
        return np.asarray(_magnitude(bits) > self.last)

    def apart(self, got: Bits, want: Bits) -> NDArray[np.int64]:
        """How many values of the type lie between; both zeros are one, NaNs are not counted."""
        found = np.abs(_position(got) - _position(want))
        return np.where(self.nans(got) | self.nans(want), 0, found)

    def wrong_nans(self, got: Bits, want: Bits) -> Chosen:
        """Where one is a NaN and the other is none, or ``got`` is a NaN of other bits."""
        wrong = self.nans(got) != self.nans(want)
        if self.nan is not None:
            wrong |= self.nans(got) & (got != self.nan)
        return np.asarray(wrong)

    def largest(self, bits: Bits) -> NDArray[np.float64]:
        """The largest finite magnitude of each row."""
        values = np.abs(self.values(bits))
        return np.asarray(np.where(np.isfinite(values), values, 0).max(axis=-1, initial=0))


E4M3 = Format(ml_dtypes.float8_e4m3fn, 0x7E, steps=1, share=0.015, nan=0x7F)
BF16 = Format(ml_dtypes.bfloat16, 0x7F80, steps=2, share=0.005)
FORMATS = {"u1": E4M3, "u2": BF16}


def format_of(bits: Bits) -> Format:
    """The type that ``bits`` are of."""
    return FORMATS[bits.dtype.str[1:]]


def _magnitude(bits: Bits) -> NDArray[np.int64]:
    return bits.astype(np.int64) & (1 << (8 * bits.itemsize - 1)) - 1


def _position(bits: Bits) -> NDArray[np.int64]:
    magnitude = _magnitude(bits)
    return np.where(magnitude == bits, magnitude, -magnitude)


class Exact:
    """Bit for bit, whatever the values mean."""

    def __call__(self, got: Bits, want: Bits) -> Verdict:
        """What the rule says of an array."""
        return judge(Judged(self, got, (want,)))

    def allowed(self, got: Bits) -> str:
        return "bit for bit"

    def marks(self, got: Bits, want: Bits) -> Marks:
        rows, columns = np.nonzero(got != want)
        theirs, ours = got[rows, columns].astype(np.int64), want[rows, columns].astype(np.int64)
        all_wrong = np.ones(len(rows), bool)
        return Marks(rows, columns, np.abs(theirs - ours), np.zeros(len(rows)), all_wrong)


@dataclass(frozen=True)
class Close:
    """At most so many steps of the type away, or closer than a share of the row's largest
    magnitude; NaN exactly where the reference has it.

    ``rotated`` is the share for the last 64 columns of a BF16 row, where it is another.
    """

    rotated: float | None = None

    def __call__(self, got: Bits, want: Bits) -> Verdict:
        """What the rule says of an array."""
        return judge(Judged(self, got, (want,)))

    def allowed(self, got: Bits) -> str:
        kind = format_of(got)
        steps = f"{kind.steps} step{'s' * (kind.steps > 1)}"
        more = f" ({self.rotated:.1%} in rotated columns)" if self._rotates(kind) else ""
        return f"{steps} or under {kind.share:.1%} of the row's largest{more}"

    def marks(self, got: Bits, want: Bits) -> Marks:
        kind = format_of(got)
        rows, columns = np.nonzero(got != want)
        theirs, ours = got[rows, columns], want[rows, columns]
        steps = kind.apart(theirs, ours)
        limits = np.full(got.shape[-1], kind.share)
        if self._rotates(kind):
            limits[-ROPE:] = self.rotated
        several, places = np.unique(rows, return_inverse=True)
        with np.errstate(all="ignore"):
            apart = np.abs(kind.values(theirs) - kind.values(ours))
            shares = apart / kind.largest(want[several])[places]
        few = steps <= kind.steps
        wrong = ~(few | (shares < limits[columns])) | kind.wrong_nans(theirs, ours)
        return Marks(rows, columns, steps, np.where(few | wrong, 0, shares), wrong)

    def _rotates(self, kind: Format) -> bool:
        return self.rotated is not None and kind is BF16


exact, close = Exact(), Close()
