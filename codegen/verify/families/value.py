"""How value kernels are checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...dims import (
    KV_LORA,
    V,
)
from ...plan import Plan
from ...reference import value as reference
from ...schema import Gate, Value
from .. import tolerance
from ..expected import Expected
from ..judge import Bits
from ..samples import (
    INF,
    NAN,
    ROWS,
    Arrays,
    Rng,
    Sample,
    bf16,
)


def sample(config: Value, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the value kernel."""
    base = Sample.of(rng, config.batch, config.q, rows)
    latent = np.full((base.rows, config.heads, KV_LORA), NAN, np.uint16)
    latent[base.live] = bf16(rng, len(base.live), config.heads, KV_LORA)
    w_uv = bf16(rng, config.heads, V, KV_LORA, scale=0.05)
    return with_gates(config, rng, base, {"latent": latent, "w_uv": w_uv})


def expect(plan: Plan, sample: Sample) -> Iterable[Expected]:
    config: Any = plan.config
    latent, w_uv = sample.arrays["latent"][sample.live], sample.arrays["w_uv"]
    gates, lengths = gates_and_lengths(sample)
    want = reference.value(latent, w_uv, gates, lengths, q=config.q)
    return by_request(sample, Expected("value", "out", (), want, tolerance.close))


EDGES = (0x42B0, 0xC2B0, INF, INF | 0x8000)  # gates of 88, -88, Inf, -Inf as BF16 bits


def with_gates(config: Value | Gate, rng: Rng, base: Sample, first: Arrays) -> Sample:
    """``first`` beside gates and lengths. About every fifth request is empty, one at least, and
    all its gates are NaN or infinite; other gates are now and then at the sigmoid's ends."""
    live, q, columns = base.live, config.q, config.heads * V
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


def gates_and_lengths(sample: Sample) -> tuple[Bits, Bits]:
    """The gates of the live rows, and the lengths of their requests."""
    live = sample.live
    return sample.view("gate")[live], sample.arrays["lengths"][live[:: sample.q] // sample.q]


def by_request(sample: Sample, rows: Expected) -> Iterable[Expected]:
    """The live ``rows`` as they are expected, but those of empty requests exactly zero."""
    live, (_, lengths) = sample.live, gates_and_lengths(sample)
    empty = np.repeat(lengths <= 0, sample.q)
    others = tuple(other[~empty] for other in rows.others)
    yield replace(rows, where=(live[~empty],), want=rows.want[~empty], others=others)
    yield Expected("empty requests", "out", (live[empty],), rows.want[empty], tolerance.exact)
