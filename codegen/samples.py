"""Random inputs of the kernel families, on the host: what checks feed to kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .schema import Gate, IndexFront, Query, QueryNorm, Value

Rng: TypeAlias = np.random.Generator
Arrays: TypeAlias = dict[str, NDArray[Any]]

LORA, KV, ROPE, HEAD_ROWS = 1536, 512, 64, 192
ROWS = 256  # of a sample, about: so many that few flips of a rounding stay a small share
NAN, INF = 0x7FC0, 0x7F80  # BF16 bits
GATE = 128  # columns of a head
KEY, KEY_HEADS, KEY_PAGE = 128, 32, 64  # of the indexer
EDGES = (0x42B0, 0xC2B0, INF, INF | 0x8000)  # gates of 88, -88, Inf, -Inf as BF16 bits
PAGES = (1, 16, 64, 128)  # tokens


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


def query_weights(rng: Rng, heads: int) -> Arrays:
    """The weights of a query kernel."""
    return {
        "w_qa": bf16(rng, LORA, scale=0.1, mean=1),
        "w_kva": bf16(rng, KV, scale=0.1, mean=1),
        "w_qb": bf16(rng, heads * HEAD_ROWS, LORA, scale=0.02),
        "w_uk": bf16(rng, heads, 128, KV, scale=0.05),
    }


def query(config: Query, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the query kernel in any form."""
    base = Sample.of(rng, config.batch, rows=rows)
    page = int(rng.choice(PAGES))
    pages = -(-2 * base.rows // page)
    arrays: Arrays = {
        "qkv": packed_rows(rng, base),
        **query_weights(rng, config.heads),
        "slots": slots(rng, base.rows, pages * page),
        "q_scale_inv": rng.uniform(0.5, 64, 1).astype(np.float32),
        "k_scale_inv": rng.uniform(0.5, 64, 1).astype(np.float32),
        "k_scale": rng.uniform(2**-6, 2, 1).astype(np.float32),
    }
    extents = {"cache": (pages, page)}
    return replace(base, arrays=arrays, extents=extents, scalars={"eps": 1e-6})


def query_norm(config: QueryNorm, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the query_norm kernel."""
    base = Sample.of(rng, config.batch, rows=rows)
    arrays: Arrays = {"qkv": packed_rows(rng, base), "w_qa": bf16(rng, LORA, scale=0.1, mean=1)}
    return replace(base, arrays=arrays, scalars={"eps": 1e-6})


def _with_gates(config: Value | Gate, rng: Rng, base: Sample, first: Arrays) -> Sample:
    """``first`` beside gates and lengths. About every fifth request is empty, one at least, and
    all its gates are NaN or infinite; other gates are now and then at the sigmoid's ends."""
    live, q, columns = base.live, config.q, config.heads * GATE
    start = 8 * int(rng.integers(0, 5))
    gates = bf16(rng, base.rows, columns, scale=4)
    gates = np.where(rng.random(gates.shape) < 1e-3, rng.choice(EDGES, gates.shape), gates)
    requests = live[::q] // q
    lengths = np.where(rng.random(base.rows // q) < 0.2, 0, 7).astype(np.int32)
    lengths[rng.choice(requests, 2, replace=False)] = -1, 1
    empty = np.repeat(lengths <= 0, q)
    gates[empty] = rng.choice((NAN, INF, INF | 0x8000), (int(empty.sum()), columns))
    packed = np.full((base.rows, start + columns + 8 * int(rng.integers(0, 3))), NAN, np.uint16)
    packed[live, start : start + columns] = gates[live]
    inner = {"gate": np.s_[:, start : start + columns]}
    return replace(base, arrays={**first, "gate": packed, "lengths": lengths}, inner=inner)


def value(config: Value, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the value kernel."""
    base = Sample.of(rng, config.batch, config.q, rows)
    latent = np.full((base.rows, config.heads, KV), NAN, np.uint16)
    latent[base.live] = bf16(rng, len(base.live), config.heads, KV)
    w_uv = bf16(rng, config.heads, GATE, KV, scale=0.05)
    return _with_gates(config, rng, base, {"latent": latent, "w_uv": w_uv})


def gate(config: Gate, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the gate kernel."""
    base = Sample.of(rng, config.batch, config.q, rows)
    values = np.full((config.heads, base.rows, GATE), NAN, np.uint16)
    values[:, base.live] = bf16(rng, config.heads, len(base.live), GATE)
    return _with_gates(config, rng, base, {"values": values})


def index_front(config: IndexFront, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the indexer's front. Key and head weights lie in either order, at any distance."""
    base = Sample.of(rng, config.batch, rows=rows)
    live, gaps = base.live, rng.integers(0, 20, 3)
    key, weight = LORA + 8 * int(gaps[0]), LORA + 8 * int(gaps[1])
    if rng.random() < 0.5:
        weight += key - LORA + KEY
    else:
        key += weight - LORA + KEY_HEADS
    width = -(-max(key + KEY, weight + KEY_HEADS) // 8) * 8 + 8 * int(gaps[2])
    projected = np.full((base.rows, width), NAN, np.uint16)
    zero, large = rng.choice(live, 2, replace=False)
    for start, columns in ((0, LORA), (key, KEY), (weight, KEY_HEADS)):
        projected[live, start : start + columns] = bf16(rng, len(live), columns)
        projected[large, start : start + columns] = bf16(rng, columns, scale=2**20)
        projected[zero, start : start + columns] = 0
    pages = -(-2 * base.rows // KEY_PAGE)
    arrays: Arrays = {
        "projected": projected,
        "w_qa": bf16(rng, LORA, scale=0.1, mean=1),
        "wq_b": bf16(rng, KEY_HEADS * KEY, LORA, scale=0.02),
        "norm_w": (1 + 0.1 * rng.standard_normal(KEY)).astype(np.float32),
        "norm_b": (0.1 * rng.standard_normal(KEY)).astype(np.float32),
        "slots": slots(rng, base.rows, pages * KEY_PAGE),
    }
    scalars = {"eps": 1e-6, "key_eps": 1e-5, "key": key, "weight": weight}
    return replace(base, arrays=arrays, extents={"cache": (pages,)}, scalars=scalars)
