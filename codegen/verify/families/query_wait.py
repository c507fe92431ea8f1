"""How query_wait kernels are checked, on all ranks at once."""

from __future__ import annotations

import numpy as np

from ...dcp.layout import PARITIES
from ...emulator.executor import Emulated
from ...emulator.ranks import launch
from .. import shards, tolerance
from ..judge import joined
from ..outcome import Trial
from ..samples import (
    ROWS,
    Rng,
    Sample,
)
from ..shards import mailed


def ranks(made: Emulated, rng: Rng, seed: int) -> Trial:
    """A full mailbox ends the wait, and stays as it is."""
    config = mailed(made)
    boxes, found = shards.mailboxes(config), []
    sample = Sample.of(rng, config.batch, rows=ROWS)
    for number, launched in enumerate(sample.launches):
        parity = number % PARITIES
        full = [shards.sent(box, parity, launched) for box in boxes]
        for held in full:
            held[...] = rng.integers(0, np.iinfo(held.dtype).max, held.shape, held.dtype)
        before = [held.copy() for held in full]
        given = [{"num_rows": len(launched)}] * config.dcp
        launch(made, boxes, given, parity, seed=seed, lazy=seed % 2 == 0)
        found += [tolerance.exact(*pair) for pair in zip(full, before, strict=True)]
        shards.empty(boxes, parity, launched)
        found.append(shards.idle(boxes))
    return Trial.of(seed, sample, {"mailboxes": joined(found)})
