"""Random inputs of the kernel families, on the host: what checks feed to kernels."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..dims import HEAD_ROWS, KV_LORA, NOPE, PACKED, Q_LORA, ROPE
from ..schema import Config

Rng: TypeAlias = np.random.Generator
Arrays: TypeAlias = dict[str, NDArray[Any]]

ROWS = 64  # of a sample, about
NAN, INF = 0x7FC0, 0x7F80  # BF16 bits


@dataclass(frozen=True)
class Sample:
    """Arguments of a few launches that share arrays.

    ``arrays`` are the inputs by name, ``extents`` the leading extents of arrays that are written
    in place, ``scalars`` the by-value arguments. An argument that is only a part of its array is
    that by an index of ``inner``. Each launch has the token rows of one of ``launches``, whole
    requests of ``q`` rows; the rows in between are none's.
    """

    arrays: Arrays
    launches: tuple[range, ...]
    extents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    inner: Mapping[str, Any] = field(default_factory=dict)
    q: int = 1

    @property
    def live(self) -> NDArray[np.int64]:
        """The rows of all launches."""
        return np.concatenate([np.asarray(rows) for rows in self.launches])

    @property
    def rows(self) -> int:
        """Rows that the arrays hold."""
        return self.launches[-1].stop + self.q

    def view(self, name: str) -> NDArray[Any]:
        """The argument ``name``."""
        return np.asarray(self.arrays[name][self.inner.get(name, ...)])

    @classmethod
    def of(cls, rng: Rng, batch: int, q: int = 1, rows: int = ROWS) -> Sample:
        """No arrays yet: two launches or more, the first full, then random ones, each a request of
        ``q`` rows after the one before."""
        made = [range(batch)]
        while len(made) < 2 or made[-1].stop < rows:
            start = made[-1].stop + q
            made.append(range(start, start + q * int(rng.integers(1, batch // q + 1))))
        return cls({}, tuple(made), q=q)


def fresh(config: Config, seed: int) -> Rng:
    """What the inputs of a kernel are drawn from."""
    return np.random.default_rng((seed, zlib.crc32(config.slug.encode())))


def bf16(rng: Rng, *shape: int, scale: float = 1, mean: float = 0) -> NDArray[np.uint16]:
    """Normal noise as BF16 bits."""
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale) + np.float32(mean)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def slots(rng: Rng, rows: int, cells: int) -> NDArray[np.int64]:
    """Distinct cache rows out of ``cells``; about every fifth token has none."""
    found = rng.permutation(cells)[:rows].astype(np.int64)
    return np.where(rng.random(rows) < 0.2, -1, found)


def packed_rows(rng: Rng, sample: Sample) -> NDArray[np.uint16]:
    """Packed projection rows, NaN in between launches and in a random number of further columns.
    One row is zero, one is large, one has a k_pe that saturates."""
    width, live = PACKED, sample.live
    qkv = np.full((sample.rows, width + 8 * int(rng.integers(0, 5))), NAN, np.uint16)
    qkv[live, :width] = bf16(rng, len(live), width)
    zero, large, k_pe = rng.choice(live, 3, replace=False)
    qkv[k_pe, Q_LORA + KV_LORA : width] = bf16(rng, ROPE, scale=2**14)
    qkv[large, :width] = bf16(rng, width, scale=2**20)
    qkv[zero, :width] = 0
    return qkv


def query_weights(rng: Rng, heads: int) -> Arrays:
    """The weights of a query kernel."""
    return {
        "w_qa": bf16(rng, Q_LORA, scale=0.1, mean=1),
        "w_kva": bf16(rng, KV_LORA, scale=0.1, mean=1),
        "w_qb": bf16(rng, heads * HEAD_ROWS, Q_LORA, scale=0.02),
        "w_uk": bf16(rng, heads, NOPE, KV_LORA, scale=0.05),
    }


def cells(sample: Sample, page: int) -> tuple[NDArray[np.bool_], tuple[NDArray[Any], NDArray[Any]]]:
    """Which of the live rows have a slot, and the page and the place in it of those."""
    slots = sample.arrays["slots"][sample.live]
    taken = slots >= 0
    return taken, (slots[taken] // page, slots[taken] % page)
