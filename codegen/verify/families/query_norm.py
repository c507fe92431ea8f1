"""How query_norm kernels are checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...dims import (
    Q_LORA,
)
from ...plan import Plan
from ...schema import QueryNorm
from ..expected import Expected
from ..samples import (
    ROWS,
    Arrays,
    Rng,
    Sample,
    bf16,
    packed_rows,
)
from .query import ULPS, q_c_rows


def sample(config: QueryNorm, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the query_norm kernel."""
    base = Sample.of(rng, config.batch, rows=rows)
    arrays: Arrays = {"qkv": packed_rows(rng, base), "w_qa": bf16(rng, Q_LORA, scale=0.1, mean=1)}
    return replace(base, arrays=arrays, scalars={"eps": 1e-6})


def expect(plan: Plan, sample: Sample) -> Iterable[Expected]:
    return q_c_rows(sample, ULPS)
