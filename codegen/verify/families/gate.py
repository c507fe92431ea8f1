"""How gate kernels are checked."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...dims import (
    V,
)
from ...schema import Gate
from .. import tolerance
from ..expected import Expected
from ..samples import (
    NAN,
    ROWS,
    Rng,
    Sample,
    bf16,
)
from .value import gated, with_gates


def sample(config: Gate, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the gate kernel."""
    base = Sample.of(rng, config.batch, config.q, rows)
    values = np.full((config.heads, base.rows, V), NAN, np.uint16)
    values[:, base.live] = bf16(rng, config.heads, len(base.live), V)
    return with_gates(config, rng, base, {"values": values})


def expect(config: Gate, sample: Sample) -> Iterable[Expected]:
    return gated(config, sample, "gate", tolerance.nearly_exact)
