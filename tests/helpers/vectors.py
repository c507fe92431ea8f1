"""The 75 stored cases as samples, and what their outputs must hold.

The rules are those of docs/kernels.md, "When is a result right". On a GPU q_c is right to the byte;
elsewhere a row of it may be that of a reciprocal RMS with another last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from kgen.codegen.reference import query as reference
from kgen.codegen.verify import tolerance
from kgen.codegen.verify.expected import Expected, neighbours
from kgen.codegen.verify.families.index_front import key_bytes
from kgen.codegen.verify.families.query import ULPS, normed
from kgen.codegen.verify.samples import Sample

from ..data import inputs
from .places import DATA

FAMILIES = {"query": "query", "value": "value", "front": "index_front"}


@cache
def _stored(file: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{file}.npz") as arrays:
        return dict(arrays)


def vector(name: str) -> tuple[str, dict[str, Any], Sample, list[Expected]]:
    """The family of a case, its fields, its inputs and what its outputs must be."""
    file = name.partition("/")[0]
    options, given = inputs.case(name)
    stored = {k.rpartition("/")[2]: v for k, v in _stored(file).items() if k.startswith(name + "/")}
    make = {"query": _query, "value": _value, "front": _front}[file]
    sample, expected = make(options["batch"], given, stored)
    return FAMILIES[file], options, sample, list(expected)


Made = tuple[Sample, Iterator[Expected]]


def _query(batch: int, given: dict[str, Any], stored: dict[str, np.ndarray]) -> Made:
    page = given["page"]
    arrays = {name: given[name] for name in ("qkv", "w_qa", "w_kva", "w_qb", "w_uk", "slots")}
    arrays["q_scale_inv"] = np.array([given["q_scale_inv"]], np.float32)
    arrays |= dict.fromkeys(("k_scale_inv", "k_scale"), np.array([given["k_scale"]], np.float32))
    extents = {"cache": (given["pages"], page)}
    sample = Sample(arrays, (range(batch),), extents, {"eps": float(given["eps"])})

    def expected() -> Iterator[Expected]:
        slots = given["slots"][given["slots"] >= 0]
        yield Expected("query", "out", (sample.live,), stored["query"], tolerance.close)
        yield Expected(
            "rows", "cache", (slots // page, slots % page), stored["rows"], tolerance.exact
        )
        if "q_c" in stored:
            _, *others = (
                reference.query_norm(
                    given["qkv"], w_qa=given["w_qa"], eps=float(given["eps"]), ulps=n
                )
                for n in neighbours(ULPS)
            )
            yield normed("q_c", "q_c", (sample.live,), (stored["q_c"], *others))

    return sample, expected()


def _value(batch: int, given: dict[str, Any], stored: dict[str, np.ndarray]) -> Made:
    arrays = {name: given[name] for name in ("latent", "w_uv", "gate", "lengths")}
    want = stored["output"].reshape(batch, -1)
    sample = Sample(arrays, (range(batch),), q=given["q"])
    return sample, iter([Expected("value", "out", (sample.live,), want, tolerance.close)])


def _front(batch: int, given: dict[str, Any], stored: dict[str, np.ndarray]) -> Made:
    names = ("projected", "w_qa", "wq_b", "norm_w", "norm_b", "slots")
    scalars: dict[str, Any] = {name: int(given[name]) for name in ("key", "weight")}
    scalars |= {name: float(given[name]) for name in ("eps", "key_eps")}
    arrays, extents = {name: given[name] for name in names}, {"cache": (given["pages"],)}
    sample = Sample(arrays, (range(batch),), extents, scalars)

    def expected() -> Iterator[Expected]:
        slots = given["slots"][given["slots"] >= 0]
        cells, live = (slots // 64, slots % 64), (sample.live,)
        keys, scales = key_bytes(0, 128), key_bytes(8192, 4)
        yield Expected("queries", "q_out", live, stored["query"], tolerance.close)
        yield Expected("head weights", "w_out", live, stored["weights"], tolerance.exact)
        yield Expected("keys", "cache", cells, stored["keys"], tolerance.exact, view=keys)
        yield Expected("scales", "cache", cells, stored["scales"], tolerance.exact, view=scales)

    return sample, expected()
