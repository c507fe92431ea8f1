"""Kernels of several ranks run on the CPU, all ranks at once, with random inputs, and judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import judge, shards, verify
from .conversions import from_bf16, from_e4m3, to_bf16
from .emulator import Emulated, emulate
from .mailbox_shape import PARITIES
from .plan import plan
from .plan_dcp import query_dtype
from .plan_mailbox import Mailed
from .samples import Rng, Sample
from .schema import Config, DcpValue, Query, QueryWait, make
from .shards import Queries, Tails, Verdicts
from .virtual import launch

ROWS = 5  # of a sample, about: all ranks run them
KEYS = 5  # of a rank's share of the context, where attention stands in
STEP = ("heads", "batch", "dcp", "q_heads", "watchdog", "release")  # of a query and its dcp_value

Found = tuple[Sample, Verdicts]


def trial(made: Emulated, rng: Rng, seed: int) -> Found:
    """Fresh inputs for every rank, and a verdict for each output.

    Launches take turns with the parities; what else a layer has refills the mailboxes here.
    """
    runs: dict[type[Config], Callable[[Emulated, Rng, int], Found]] = {
        Query: _query,
        QueryWait: _query_wait,
        DcpValue: _dcp_value,
    }
    return runs[type(made.plan.config)](made, rng, seed)


def _query(made: Emulated, rng: Rng, seed: int) -> Found:
    boxes = shards.mailboxes(_mailed(made))
    ranks = Queries.of(made, boxes, rng, ROWS)
    for number, launched in enumerate(ranks.launches):
        parity = number % PARITIES
        ranks.step(number, parity, seed, seed % 2 == 0)
        shards.empty(boxes, parity, launched)
        ranks.mailed.append(shards.idle(boxes))
    return ranks.parts[0], ranks.verdicts()


def _query_wait(made: Emulated, rng: Rng, seed: int) -> Found:
    """A full mailbox ends the wait, and stays as it is."""
    config = _mailed(made)
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
        found += [judge.exact(*pair) for pair in zip(full, before, strict=True)]
        shards.empty(boxes, parity, launched)
        found.append(shards.idle(boxes))
    return sample, {"mailboxes": verify.joined(found)}


def _dcp_value(made: Emulated, rng: Rng, seed: int) -> Found:
    """Queries that were read are of any bytes."""
    boxes = shards.mailboxes(_mailed(made))
    ranks = Tails.of(made, boxes, rng, ROWS)
    for number, launched in enumerate(ranks.launches):
        parity = number % PARITIES
        for box in boxes:
            shards.sent(box, parity, launched)[...] = 5
        ranks.step(number, parity, seed, seed % 2 == 0)
    return ranks.parts[0], ranks.verdicts()


def _mailed(made: Emulated) -> Mailed:
    config = made.plan.config
    assert isinstance(config, Mailed)
    return config


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
    fields = {name: getattr(config, name) for name in STEP}
    tail = make("dcp_value", fields | {"bf16": query_dtype(config) == "bf16"})
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
    return {name: verify.joined(each[name] for each in found if name in each) for name in names}


def _attention(queries: NDArray[Any], keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and LSEs, base 2, of queries [tokens, heads, 576] over ``keys`` [n, 576]."""
    numbers = from_e4m3(queries) if queries.dtype == np.uint8 else from_bf16(queries)
    scores = numbers @ keys.T / 576
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp2(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    return to_bf16(weights / total @ keys[:, :512]), (top + np.log2(total))[..., 0]
