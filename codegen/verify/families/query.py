"""How query kernels are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...dcp.layout import PARITIES
from ...emulator.executor import Emulated
from ...plan import Plan
from ...reference import query as reference
from ...schema import Query
from .. import shards, tolerance
from ..expected import Expected, as_e4m3, as_held, neighbours
from ..judge import Bits
from ..outcome import Trial
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
from ..shards import RANK_ROWS, Queries, mailed

PAGES = (1, 16, 64, 128)  # tokens

# How far a reciprocal RMS may be off, in ulp of FP32; tensor cores, which sum the squares in some
# templates, truncate what they add.
ULPS, TENSOR_ULPS = 2, 4
TENSOR_SUMS = tuple(f"query/{name}.cu.j2" for name in ("rows", "kpair", "wgmma"))


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


def expect(plan: Plan, sample: Sample) -> Iterable[Expected]:
    """A row is of one reciprocal RMS, which need not be that nearest to the exact one."""
    config: Any = plan.config
    given, live = sample.arrays, sample.live
    qkv = given["qkv"][live]
    line: dict[str, Any] = {
        "w_kva": given["w_kva"],
        "k_scale": float(given["k_scale" if config.dsa else "k_scale_inv"][0]),
        "eps": sample.scalars["eps"],
        **{name: getattr(config, name) for name in ("dsa", "fp8", "nvfp4")},
    }
    own: dict[str, Any] = {name: given[name] for name in ("w_qa", "w_qb", "w_uk")}
    want = reference.query(qkv, **line, **own, q_scale_inv=float(given["q_scale_inv"][0]))
    yield Expected("query", "out", (live,), want.query, tolerance.close)
    taken, where = cells(sample, sample.extents["cache"][1])
    rows = [reference.kv_rows(qkv[taken], **line, ulps=n) for n in neighbours(ULPS)]
    yield normed("cache rows", "cache", where, rows, codes)
    if config.dsa and config.store_qc:
        ulps = TENSOR_ULPS if plan.template in TENSOR_SUMS else ULPS
        yield from q_c_rows(sample, ulps)


def q_c_rows(sample: Sample, ulps: int) -> Iterator[Expected]:
    """The q_c rows, of a reciprocal RMS that may be ``ulps`` off."""
    live, w_qa, eps = sample.live, sample.arrays["w_qa"], sample.scalars["eps"]
    qkv = sample.arrays["qkv"][live]
    rows = [reference.query_norm(qkv, w_qa=w_qa, eps=eps, ulps=n) for n in neighbours(ulps)]
    yield normed("q_c", "q_c", (live,), rows)


def normed(
    name: str,
    array: str,
    where: tuple[Any, ...],
    rows: Sequence[Bits],
    values: Callable[[Bits], Bits] = as_held,
) -> Expected:
    """Rows, each as one of those that neighbouring reciprocal RMS give, the same for all of it."""
    near = f"each row of one reciprocal RMS within {len(rows) // 2} ulp"
    want, *others = rows
    return Expected(
        name, array, where, want, tolerance.exact, values, others=tuple(others), near=near
    )


def codes(rows: Bits) -> Bits:
    """KV rows as bytes, but packed E2M1 as codes, whose steps count."""
    if rows.shape[-1] != 352:
        return rows
    return np.concatenate(
        (as_e4m3(rows[:, :256] & 15), as_e4m3(rows[:, :256] >> 4), rows[:, 256:]), axis=-1
    )


def ranks(made: Emulated, rng: Rng, seed: int) -> Trial:
    boxes = shards.mailboxes(mailed(made))
    ranks = Queries.of(made, boxes, rng, RANK_ROWS)
    for number, launched in enumerate(ranks.launches):
        parity = number % PARITIES
        ranks.step(number, parity, seed, seed % 2 == 0)
        shards.empty(boxes, parity, launched)
        ranks.mailed.append(shards.idle(boxes))
    return Trial.of(seed, ranks.parts[0], ranks.verdicts())
