"""How the kernels of the indexer's front are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...dims import (
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_PAGE,
    Q_LORA,
)
from ...plan import Plan
from ...reference import index_front as reference
from ...schema import IndexFront
from .. import tolerance
from ..expected import Expected, as_e4m3, as_held, neighbours, singles
from ..judge import Bits
from ..samples import (
    NAN,
    ROWS,
    Arrays,
    Rng,
    Sample,
    bf16,
    cells,
    slots,
)


def sample(config: IndexFront, rng: Rng, rows: int = ROWS) -> Sample:
    """Inputs of the indexer's front. Key and head weights lie in either order, at any distance."""
    base = Sample.of(rng, config.batch, rows=rows)
    live, gaps = base.live, rng.integers(0, 20, 3)
    key, weight = Q_LORA + 8 * int(gaps[0]), Q_LORA + 8 * int(gaps[1])
    if rng.random() < 0.5:
        weight += key - Q_LORA + INDEX_DIM
    else:
        key += weight - Q_LORA + INDEX_HEADS
    width = -(-max(key + INDEX_DIM, weight + INDEX_HEADS) // 8) * 8 + 8 * int(gaps[2])
    projected = np.full((base.rows, width), NAN, np.uint16)
    zero, large = rng.choice(live, 2, replace=False)
    for start, columns in ((0, Q_LORA), (key, INDEX_DIM), (weight, INDEX_HEADS)):
        projected[live, start : start + columns] = bf16(rng, len(live), columns)
        projected[large, start : start + columns] = bf16(rng, columns, scale=2**20)
        projected[zero, start : start + columns] = 0
    pages = -(-2 * base.rows // INDEX_PAGE)
    arrays: Arrays = {
        "projected": projected,
        "w_qa": bf16(rng, Q_LORA, scale=0.1, mean=1),
        "wq_b": bf16(rng, INDEX_HEADS * INDEX_DIM, Q_LORA, scale=0.02),
        "norm_w": (1 + 0.1 * rng.standard_normal(INDEX_DIM)).astype(np.float32),
        "norm_b": (0.1 * rng.standard_normal(INDEX_DIM)).astype(np.float32),
        "slots": slots(rng, base.rows, pages * INDEX_PAGE),
    }
    scalars = {"eps": 1e-6, "key_eps": 1e-5, "key": key, "weight": weight}
    return replace(base, arrays=arrays, extents={"cache": (pages,)}, scalars=scalars)


def expect(plan: Plan, sample: Sample) -> Iterable[Expected]:
    """Another order of additions may move a largest magnitude by a step of BF16, and across the
    power of two that its scale depends on: then all that has this scale is another."""
    config: Any = plan.config
    live, near = sample.live, "of a largest magnitude within 1 step of BF16"
    names = ("w_qa", "wq_b", "norm_w", "norm_b")
    given: dict[str, Any] = {**{n: sample.arrays[n] for n in names}, **sample.scalars}
    values = reference.front_values(sample.arrays["projected"][live], **given)
    wants = [
        reference.front_outputs(values, mx=config.mx, fp4=config.fp4, nudge=nudge)
        for nudge in neighbours(1)
    ]
    taken, places = cells(sample, INDEX_PAGE)
    width = wants[0].keys.shape[-1]

    def expected(name: str, array: str, field: str, tie: str = "", **more: Any) -> Expected:
        rows, where = (taken, places) if array == "cache" else (slice(None), (live,))
        want, *others = (getattr(each, field)[rows] for each in wants)
        more |= {"others": tuple(others), "near": near} if tie else {}
        return Expected(name, array, where, want, tie=tie, **more)

    as_codes = {"rule": tolerance.close, "values": mxfp4_blocks if config.fp4 else as_held}
    as_scales = {"rule": tolerance.exact, "values": singles if config.fp4 else as_held}
    yield expected("queries", "q_out", "q_out", "query", **as_codes)
    if config.fp4:
        yield expected("query scales", "q_scale", "q_scale", "query", **as_scales)
        yield expected("head weights", "w_out", "w_out", rule=tolerance.exact)
    else:
        one = {"rule": tolerance.exact, "values": singles}
        yield expected("head weights", "w_out", "w_out", "query", **one)
    yield expected("keys", "cache", "keys", "key", view=key_bytes(0, width), **as_codes)
    scales = key_bytes(INDEX_PAGE * width, 4)
    yield expected("key scales", "cache", "scales", "key", view=scales, **as_scales)


def key_bytes(start: int, width: int) -> Callable[[Bits], Bits]:
    """The view [pages, 64, width] of cache pages: ``width`` bytes a token, from ``start`` on."""

    def view(pages: Bits) -> Bits:
        flat = pages.reshape(len(pages), -1)[:, start : start + INDEX_PAGE * width]
        return flat.reshape(len(pages), INDEX_PAGE, width)

    return view


def mxfp4_blocks(packed: Bits) -> Bits:
    """MXFP4 codes as rows of 32 that share a scale."""
    codes = np.stack((packed & 15, packed >> 4), axis=-1)
    return as_e4m3(codes.reshape(*packed.shape[:-1], packed.shape[-1] // 16, 32))
