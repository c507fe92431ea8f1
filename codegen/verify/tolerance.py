"""Whether outputs are right: the rules that judge them against a reference, value by value.

``got`` and ``want`` are bit patterns: E4M3 as uint8, BF16 as uint16. A row is the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
FLIPS = 1e-4  # share of values that may be one step off where a rounding may flip


@dataclass(frozen=True)
class Format:
    """An output type: its dtype, its largest magnitude that is no NaN, and the share of a row's
    largest magnitude below which a difference counts as none. Only NaNs of the bits ``nan`` are
    right, where given."""

    name: str
    dtype: Any
    last: int
    tolerance: float
    nan: int | None = None

    def values(self, bits: Bits) -> NDArray[np.float64]:
        """What ``bits`` mean."""
        with np.errstate(invalid="ignore"):
            return np.asarray(bits.view(self.dtype).astype(np.float64))

    def nans(self, bits: Bits) -> NDArray[np.bool_]:
        """Where ``bits`` are a NaN."""
        return np.asarray(self._magnitude(bits) > self.last)

    def steps(self, got: Bits, want: Bits) -> NDArray[np.int64]:
        """How many values of the type lie between; both zeros are one, NaNs are not counted."""
        apart = np.abs(self._position(got) - self._position(want))
        return np.where(self.nans(got) | self.nans(want), 0, apart)

    def _magnitude(self, bits: Bits) -> NDArray[np.int64]:
        return bits.astype(np.int64) & (1 << (8 * bits.itemsize - 1)) - 1

    def _position(self, bits: Bits) -> NDArray[np.int64]:
        magnitude = self._magnitude(bits)
        return np.where(magnitude == bits, magnitude, -magnitude)


E4M3 = Format("e4m3", ml_dtypes.float8_e4m3fn, 0x7E, 0.01, nan=0x7F)
BF16 = Format("bf16", ml_dtypes.bfloat16, 0x7F80, 0.005)
FORMATS = {"u1": E4M3, "u2": BF16}


@dataclass(frozen=True)
class Verdict:
    """The outcome for ``count`` values: how many have other bits, how many steps the farthest is
    off, how many are wrong by the rule, and where the first of those is."""

    count: int
    different: int
    largest_step: int
    wrong: int
    first: tuple[int, ...] | None = None

    @property
    def right(self) -> bool:
        return self.wrong == 0

    @property
    def share_exact(self) -> float:
        """The share of values with the very bits of the reference."""
        return 1 - self.different / max(self.count, 1)

    def __str__(self) -> str:
        text = f"{self.share_exact:.4%} of {self.count:,} exact, largest step {self.largest_step}"
        if self.right:
            return f"right: {text}"
        return f"wrong: {self.wrong:,} values, the first at {self.first}; {text}"


def close(got: Bits, want: Bits) -> Verdict:
    """At most one step away, or closer than the type's tolerance times the row's largest
    magnitude; NaN exactly where the reference has it."""
    kind = _format(got, want)
    if not got.size:
        return Verdict(0, 0, 0, 0)
    steps, values, wanted = kind.steps(got, want), kind.values(got), kind.values(want)
    finite = np.where(np.isfinite(wanted), np.abs(wanted), 0)
    with np.errstate(invalid="ignore"):
        near = np.abs(values - wanted) < kind.tolerance * finite.max(axis=-1, keepdims=True)
    return _verdict(got, want, steps, ~((steps <= 1) | near) | _wrong_nans(kind, got, want))


def nearly_exact(got: Bits, want: Bits) -> Verdict:
    """Bit for bit, but for :data:`FLIPS` of the values (rounded up), which may be one step off.

    Where more are off, all of those are wrong.
    """
    kind = _format(got, want)
    steps = kind.steps(got, want)
    wrong = (steps > 1) | _wrong_nans(kind, got, want)
    off = (got != want) & ~(kind.nans(got) & kind.nans(want))
    if off.sum() > ceil(FLIPS * got.size):
        wrong |= off
    return _verdict(got, want, steps, wrong)


def exact(got: Bits, want: Bits) -> Verdict:
    """Bit for bit, whatever the values mean."""
    _check_shapes(got, want)
    different = got != want
    steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
    return _verdict(got, want, steps, different)


def _format(got: Bits, want: Bits) -> Format:
    _check_shapes(got, want)
    return FORMATS[got.dtype.str[1:]]


def _check_shapes(got: Bits, want: Bits) -> None:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        text = f"{got.dtype}{list(got.shape)} and {want.dtype}{list(want.shape)}"
        raise ValueError(f"cannot compare {text}")


def _wrong_nans(kind: Format, got: Bits, want: Bits) -> NDArray[np.bool_]:
    wrong = kind.nans(got) != kind.nans(want)
    if kind.nan is not None:
        wrong |= kind.nans(got) & (got != kind.nan)
    return np.asarray(wrong)


def _verdict(got: Bits, want: Bits, steps: Bits, wrong: Bits) -> Verdict:
    first = tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else None
    different = int((got != want).sum())
    return Verdict(got.size, different, int(steps.max(initial=0)), int(wrong.sum()), first)
