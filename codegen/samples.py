"""Random inputs of the kernel families, on the host: what checks feed to kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .schema import Query, QueryNorm

Rng: TypeAlias = np.random.Generator
Arrays: TypeAlias = dict[str, NDArray[Any]]

LORA, KV, ROPE, HEAD_ROWS = 1536, 512, 64, 192
ROWS = 256  # of a sample, about: so many that few flips of a rounding stay a small share
NAN = 0x7FC0  # BF16 bits
PAGES = (1, 16, 64, 128)  # tokens


@dataclass(frozen=True)
class Sample:
    """Arguments of a few launches that share arrays.

    ``arrays`` are the inputs by name, ``extents`` the leading extents of arrays that are written
    in place, ``scalars`` the by-value arguments. Each launch has the token rows of one of
    ``launches``; the rows in between are none's.
    """

    arrays: Arrays
    launches: tuple[range, ...]
    extents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)

    @property
    def live(self) -> NDArray[np.int64]:
        """The rows of all launches."""
        return np.concatenate([np.asarray(rows) for rows in self.launches])

    @property
    def rows(self) -> int:
        """Rows that the arrays hold."""
        return self.launches[-1].stop + 1

    @classmethod
    def of(cls, rng: Rng, batch: int) -> Sample:
        """No arrays yet: two launches or more, the first full, then random ones, a row apart."""
        made = [range(batch)]
        while len(made) < 2 or made[-1].stop < ROWS:
            start = made[-1].stop + 1
            made.append(range(start, start + int(rng.integers(1, batch + 1))))
        return cls({}, tuple(made))


def bf16(rng: Rng, *shape: int, scale: float = 1, mean: float = 0) -> NDArray[np.uint16]:
    """Normal noise as BF16 bits."""
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale) + np.float32(mean)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def packed_rows(rng: Rng, sample: Sample) -> NDArray[np.uint16]:
    """Packed projection rows, NaN in between launches and in a random number of further columns.
    One row is zero, one is large, one has a k_pe that saturates."""
    width, live = LORA + KV + ROPE, sample.live
    qkv = np.full((sample.rows, width + 8 * int(rng.integers(0, 5))), NAN, np.uint16)
    qkv[live, :width] = bf16(rng, len(live), width)
    zero, large, k_pe = rng.choice(live, 3, replace=False)
    qkv[k_pe, LORA + KV : width] = bf16(rng, ROPE, scale=2**14)
    qkv[large, :width] = bf16(rng, width, scale=2**20)
    qkv[zero, :width] = 0
    return qkv


def slots(rng: Rng, rows: int, cells: int) -> NDArray[np.int64]:
    """Distinct cache rows out of ``cells``; about every fifth token has none."""
    found = rng.permutation(cells)[:rows].astype(np.int64)
    return np.where(rng.random(rows) < 0.2, -1, found)


def query(config: Query, rng: Rng) -> Sample:
    """Inputs of the query kernel in any form."""
    heads, base = config.heads, Sample.of(rng, config.batch)
    page = int(rng.choice(PAGES))
    pages = -(-2 * base.rows // page)
    arrays: Arrays = {
        "qkv": packed_rows(rng, base),
        "w_qa": bf16(rng, LORA, scale=0.1, mean=1),
        "w_kva": bf16(rng, KV, scale=0.1, mean=1),
        "w_qb": bf16(rng, heads * HEAD_ROWS, LORA, scale=0.02),
        "w_uk": bf16(rng, heads, 128, KV, scale=0.05),
        "slots": slots(rng, base.rows, pages * page),
        "q_scale_inv": rng.uniform(0.5, 64, 1).astype(np.float32),
        "k_scale_inv": rng.uniform(0.5, 64, 1).astype(np.float32),
        "k_scale": rng.uniform(2**-6, 2, 1).astype(np.float32),
    }
    extents = {"cache": (pages, page)}
    return replace(base, arrays=arrays, extents=extents, scalars={"eps": 1e-6})


def query_norm(config: QueryNorm, rng: Rng) -> Sample:
    """Inputs of the query_norm kernel."""
    base = Sample.of(rng, config.batch)
    arrays: Arrays = {"qkv": packed_rows(rng, base), "w_qa": bf16(rng, LORA, scale=0.1, mean=1)}
    return replace(base, arrays=arrays, scalars={"eps": 1e-6})
