"""Kernels of several ranks run on the CPU, all ranks at once, with random inputs, and judged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dcp.layout import PARITIES
from ..emulator.executor import Emulated, emulate
from ..plan import plan
from ..reference.formats import from_bf16, from_e4m3, to_bf16
from ..schema import Query, after_dcp, make
from . import families, shards
from .judge import joined
from .outcome import Trial
from .samples import Rng
from .shards import Queries, Tails, Verdicts

KEYS = 5  # of a rank's share of the context, where attention stands in


def trial(made: Emulated, rng: Rng, seed: int) -> Trial:
    """Fresh inputs for every rank, and a verdict for each output.

    Launches take turns with the parities; what else a layer has refills the mailboxes here.
    """
    found: Trial = families.of(made.plan.config.kernel).ranks(made, rng, seed)
    return found


def layers(config: Query, steps: int, seed: int) -> Verdicts:
    """Steps of layers on every rank: query, an attention that stands in, dcp_value.

    Parities take turns, each step has other inputs, and nothing but the kernels refills mailboxes.

    Parameters
    ----------
    config
        Of the query, with ``dcp``; the other kernels follow from it.
    steps
        How many; the first has ``batch`` rows, others fewer at times.
    seed
        Of the inputs and the schedules; asynchronous work is late in every other pair of steps.
    """
    boxes = shards.mailboxes(config)
    tail = make("dcp_value", after_dcp("dcp_value", dict(config)))
    made, rows = [emulate(plan(each)) for each in (config, tail)], steps * (config.batch + 1)
    first = Queries.of(made[0], boxes, np.random.default_rng(seed), rows)
    last = Tails.of(made[1], boxes, np.random.default_rng(seed), rows)
    first.keep(steps)
    last.keep(steps)
    assert first.launches == last.launches and len(first.launches) == steps
    keys = np.random.default_rng(seed).standard_normal((config.dcp, KEYS, 576))
    for step in range(steps):
        parity, lazy = step % PARITIES, (step // PARITIES + seed) % 2 == 0
        first.step(step, parity, seed * steps + step, lazy)
        launched = first.launches[step]
        for box, own, mine in zip(boxes, last.sources, keys, strict=True):
            queries = shards.sent(box, parity, launched)
            own["rows"][launched], own["lse"][launched] = _attention(queries, mine)
        last.step(step, parity, seed * steps + step, lazy)
    found = (first.verdicts(), last.verdicts())
    names = dict.fromkeys(name for each in found for name in each)
    return {name: joined(each[name] for each in found if name in each) for name in names}


def _attention(queries: NDArray[Any], keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and LSEs, base 2, of queries [tokens, heads, 576] over ``keys`` [n, 576]."""
    numbers = from_e4m3(queries) if queries.dtype == np.uint8 else from_bf16(queries)
    scores = numbers @ keys.T / 576
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp2(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    return to_bf16(weights / total @ keys[:, :512]), (top + np.log2(total))[..., 0]
