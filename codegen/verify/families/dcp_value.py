"""How dcp_value kernels are checked, on all ranks at once."""

from __future__ import annotations

from ...dcp.layout import PARITIES
from ...emulator.executor import Emulated
from .. import shards
from ..outcome import Trial
from ..samples import (
    Rng,
)
from ..shards import RANK_ROWS, Tails, mailed


def ranks(made: Emulated, rng: Rng, seed: int) -> Trial:
    """Queries that were read are of any bytes."""
    boxes = shards.mailboxes(mailed(made))
    ranks = Tails.of(made, boxes, rng, RANK_ROWS)
    for number, launched in enumerate(ranks.launches):
        parity = number % PARITIES
        for box in boxes:
            shards.sent(box, parity, launched)[...] = 5
        ranks.step(number, parity, seed, seed % 2 == 0)
    return Trial.of(seed, ranks.parts[0], ranks.verdicts())
