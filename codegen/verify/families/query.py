"""How query kernels are checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ...dcp.layout import PARITIES
from ...emulator.executor import Emulated
from ...reference import query as reference
from ...schema import Query
from .. import shards, tolerance
from ..expected import Bits, Expected, as_e4m3
from ..samples import (
    ROWS,
    Arrays,
    Rng,
    Sample,
    cells,
    packed_rows,
    query_weights,
    slots,
)
from ..shards import RANK_ROWS, Found, Queries, mailed

PAGES = (1, 16, 64, 128)  # tokens


def sample(config: Query, rng: Rng, rows: int = ROWS) -> Sample:
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


def expect(config: Query, sample: Sample) -> Iterable[Expected]:
    given, live = sample.arrays, sample.live
    want = reference.query(
        given["qkv"][live],
        **{name: given[name] for name in ("w_qa", "w_kva", "w_qb", "w_uk")},
        q_scale_inv=float(given["q_scale_inv"][0]),
        k_scale=float(given["k_scale" if config.dsa else "k_scale_inv"][0]),
        eps=sample.scalars["eps"],
        dsa=config.dsa,
        fp8=config.fp8,
        nvfp4=config.nvfp4,
    )
    yield Expected("query", "out", (live,), want.query, tolerance.close)
    taken, where = cells(sample, sample.extents["cache"][1])
    yield Expected("cache rows", "cache", where, want.rows[taken], tolerance.nearly_exact, kv_parts)
    if config.dsa and config.store_qc:
        yield Expected("q_c", "q_c", (live,), want.q_c, tolerance.nearly_exact)


def kv_parts(rows: Bits) -> list[Bits]:
    """The parts of KV rows, each in a type of its own whose steps count."""
    rows = np.ascontiguousarray(rows)
    if rows.shape[-1] == 656:
        tail = np.ascontiguousarray(rows[:, 512:]).view(np.uint16)
        return [rows[:, :512], tail[:, 1:8:2], tail[:, 0:8:2], tail[:, 8:]]
    if rows.shape[-1] == 352:
        codes = np.concatenate((rows[:, :256] & 15, rows[:, :256] >> 4), axis=-1)
        return [as_e4m3(codes), rows[:, 256:]]
    return [rows]


def ranks(made: Emulated, rng: Rng, seed: int) -> Found:
    boxes = shards.mailboxes(mailed(made))
    ranks = Queries.of(made, boxes, rng, RANK_ROWS)
    for number, launched in enumerate(ranks.launches):
        parity = number % PARITIES
        ranks.step(number, parity, seed, seed % 2 == 0)
        shards.empty(boxes, parity, launched)
        ranks.mailed.append(shards.idle(boxes))
    return ranks.parts[0], ranks.verdicts()
