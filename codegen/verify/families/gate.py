"""How gate kernels are checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...dims import (
    V,
)
from ...plan import Plan
from ...reference import value as reference
from ...schema import Gate
from .. import tolerance
from ..expected import Expected, neighbours, singles
from ..samples import (
    NAN,
    ROWS,
    Rng,
    Sample,
    bf16,
)
from .value import by_request, gates_and_lengths, with_gates

ULPS = 2  # of a sigmoid


def sample(config: Gate, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the gate kernel."""
    base = Sample.of(rng, config.batch, config.q, rows)
    values = np.full((config.heads, base.rows, V), NAN, np.uint16)
    values[:, base.live] = bf16(rng, config.heads, len(base.live), V)
    return with_gates(config, rng, base, {"values": values})


def expect(plan: Plan, sample: Sample) -> Iterable[Expected]:
    """A value is that of a sigmoid that is a few ulp off: the exponential is one off at most, the
    sum and the division round."""
    config: Any = plan.config
    values = sample.arrays["values"][:, sample.live]
    given = (values, *gates_and_lengths(sample))
    want, *others = (reference.gate(*given, q=config.q, ulps=n) for n in neighbours(ULPS))
    near = f"each value of a sigmoid within {ULPS} ulp"
    rows = Expected(
        "gate", "out", (), want, tolerance.exact, singles, others=tuple(others), near=near
    )
    return by_request(sample, rows)
