"""Query launches on a GPU: kernels of any schedule, inputs with every edge, poisoned outputs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest

from kgen.codegen import api, schema
from kgen.codegen.bench import uncached
from kgen.codegen.errors import PlanError
from kgen.codegen.plan import Schedule, plan
from kgen.codegen.reference import query as reference
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.verify import tolerance
from kgen.codegen.verify.expected import neighbours
from kgen.codegen.verify.families.query import TENSOR_ULPS, ULPS
from kgen.codegen.verify.judge import Judged, judge
from kgen.codegen.verify.samples import bf16, query_weights

FORMS: dict[str, dict[str, Any]] = {
    "dense": {},
    "dsa": {"dsa": True},
    "dsa_fp8": {"dsa": True, "fp8": True},
    "dsa_nvfp4": {"dsa": True, "fp8": True, "nvfp4": True},
}
POISON = 0xFF  # of bytes: no output byte is ever 0xFF, and as BF16 it is a NaN that none stores
NAN, INF = 0x7FC0, 0x7F80  # BF16 bits

Arrays = dict[str, Any]


SCHEDULES = uncached.schedules()


@cache
def kernel(form: str, heads: int, batch: int, schedule: Schedule | None = None) -> Kernel:
    """The kernel of a form; a schedule other than its plan's is compiled apart. What cannot be
    built skips the test, with the reason."""
    config = schema.make("query", {"heads": heads, "batch": batch, **FORMS[form]})
    arch = nvml.default_arch()
    try:
        chosen = plan(config, arch)
        if schedule is None or schedule == chosen.schedule:
            return api.kernel(config, arch)
        return uncached.forced(config, schedule, arch)
    except PlanError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Layout:
    """How arrays lie in memory: tokens a page, pages, and what is left unused: columns of the
    packed row, heads of the output, tokens of a page; ``fused`` takes w_uk from a kv_b_proj."""

    page: int = 64
    pages: int = 4
    row_pad: int = 0
    head_gap: int = 0
    page_gap: int = 0
    fused: bool = False


@dataclass(frozen=True)
class Inputs:
    """Host inputs of one query launch. ``rows`` are those that it processes."""

    qkv: np.ndarray
    weights: Arrays
    slots: np.ndarray
    rows: int
    q_scale_inv: float = 4.0
    k_scale: float = 16.0
    eps: float = 1e-6
    layout: Layout = field(default_factory=Layout)

    @property
    def heads(self) -> int:
        return int(self.weights["w_uk"].shape[0])

    @property
    def batch(self) -> int:
        return len(self.qkv)

    def taken(self) -> np.ndarray:
        """The processed rows that have a slot."""
        return np.flatnonzero(self.slots[: self.rows] >= 0)

    def with_row(self, row: int, columns: Any, bits: int) -> Inputs:
        """The same with ``columns`` of a packed row replaced."""
        qkv = self.qkv.copy()
        qkv[row, columns] = bits
        return replace(self, qkv=qkv)


@dataclass(frozen=True)
class Outputs:
    """What a launch left: the query, the cache's lines [pages * page, W], q_c where stored."""

    query: np.ndarray
    lines: np.ndarray
    q_c: np.ndarray | None
    untouched: bool  # all memory around and between the outputs


def fresh(heads: int, batch: int, rows: int | None = None, layout: Layout | None = None) -> Inputs:
    """Random inputs; row 1 is zero, row 2 is large, row 3 has a k_pe that saturates, each fifth
    row has no slot. Slots are distinct, rows from ``rows`` on all NaN."""
    rng = np.random.default_rng(zlib.crc32(f"{heads}x{batch}".encode()))
    rows, layout = batch if rows is None else rows, layout or Layout()
    layout = replace(layout, pages=max(4, ceil(2 * batch / layout.page)))
    qkv = bf16(rng, batch, 2112, scale=1)
    for row, (columns, values) in enumerate(_special(rng), 1):
        if row < batch:
            qkv[row, columns] = values
    qkv[rows:] = NAN
    slots = rng.permutation(layout.pages * layout.page)[:batch].astype(np.int64)
    slots[4::5] = -1
    return Inputs(qkv, query_weights(rng, heads), slots, rows, layout=layout)


def _special(rng: np.random.Generator) -> tuple[tuple[Any, Any], ...]:
    return (
        (slice(None), 0),
        (slice(None), bf16(rng, 2112, scale=2**20)),
        (slice(2048, 2112), bf16(rng, 64, scale=2**14)),
    )


@dataclass
class Memory:
    """The device arrays of one launch: ``arguments`` are views of ``backings``."""

    arguments: Arrays
    backings: Arrays

    @classmethod
    def of(cls, made: Kernel, inputs: Inputs) -> Memory:
        """Poisoned outputs and the inputs laid out as their layout asks, NaN in between."""
        import cupy

        place, table = inputs.layout, {array.name: array for array in made.plan.params.arrays}
        width = table["cache"].axes[-1].extent
        row = np.full((inputs.batch, 2112 + place.row_pad), NAN, np.uint16)
        row[:, :2112] = inputs.qkv
        w_uk = inputs.weights["w_uk"]
        if place.fused:
            fused = np.full((inputs.heads, 256, 512), NAN, np.uint16)
            fused[:, :128] = w_uk
            w_uk = fused
        query = np.uint8 if table["out"].dtype == "e4m3" else np.uint16
        shapes = {
            "cache": ((place.pages, place.page + place.page_gap, width), np.uint8),
            "out": ((inputs.batch, inputs.heads + place.head_gap, 576), query),
            "q_c": ((inputs.batch, 1536 + place.row_pad), np.uint16),
        }
        host = {**inputs.weights, "w_uk": w_uk, "qkv": row, "slots": inputs.slots}
        for name in ("q_scale_inv", "k_scale_inv", "k_scale"):
            value = inputs.q_scale_inv if name == "q_scale_inv" else inputs.k_scale
            host[name] = np.array([value], np.float32)
        host |= {name: poisoned(*shape) for name, shape in shapes.items()}
        backings = {name: cupy.asarray(host[name]) for name in table}
        views = {
            "qkv": np.s_[:, :2112],
            "w_uk": np.s_[:, :128],
            "cache": np.s_[:, : place.page],
            "out": np.s_[:, : inputs.heads],
            "q_c": np.s_[:, :1536],
        }
        arguments = {name: array[views.get(name, ...)] for name, array in backings.items()}
        scalars = {"eps": inputs.eps, "num_rows": inputs.rows}
        return cls(arguments | scalars, backings)

    def outputs(self) -> Outputs:
        """What the outputs hold now; waits for the GPU."""
        import cupy

        cupy.cuda.Device().synchronize()
        held = {n: self.backings[n].get() for n in ("cache", "out", "q_c") if n in self.backings}
        inner = {name: self.arguments[name].shape[1] for name in held}
        outside = (held[name][:, inner[name] :] for name in held)
        lines = held["cache"][:, : inner["cache"]]
        q_c = held["q_c"][:, :1536] if "q_c" in held else None
        return Outputs(
            held["out"][:, : inner["out"]],
            lines.reshape(-1, lines.shape[-1]),
            q_c,
            all(is_poison(array) for array in outside),
        )


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of nothing but poison."""
    return np.full(shape, POISON * (0x101 if np.dtype(dtype).itemsize == 2 else 1), dtype)


def is_poison(array: np.ndarray) -> bool:
    """Whether nothing was written."""
    return bool((np.ascontiguousarray(array).view(np.uint8) == POISON).all())


def launch(made: Kernel, inputs: Inputs, **options: Any) -> Outputs:
    """One checked call on poisoned memory."""
    memory = Memory.of(made, inputs)
    made(**memory.arguments, **options)
    return memory.outputs()


def same(a: Outputs, b: Outputs) -> bool:
    """Whether two launches left the same bits everywhere."""
    pairs = [(a.query, b.query), (a.lines, b.lines)]
    if a.q_c is not None and b.q_c is not None:
        pairs.append((a.q_c, b.q_c))
    return all(np.array_equal(x, y) for x, y in pairs)


def check_edges(got: Outputs, inputs: Inputs) -> None:
    """Nothing but the rows and slots of the launch was written."""
    rows = inputs.rows
    assert got.untouched, "memory between the outputs was written"
    assert is_poison(got.query[rows:]), f"query rows from num_rows ({rows}) on were written"
    assert got.q_c is None or is_poison(got.q_c[rows:])
    written = inputs.slots[inputs.taken()]
    assert is_poison(np.delete(got.lines, written, axis=0)), "cache bytes outside the slots"


def check_values(form: str, got: Outputs, inputs: Inputs, heads: Any) -> str:
    """Judge what was written by the rules for fresh inputs; returns the query's verdict."""
    rows, taken = inputs.rows, inputs.taken()
    query = tolerance.close(got.query[:rows, heads], expected(form, inputs, heads).query)
    assert query.right, f"query: {query}"
    line = {"w_kva": inputs.weights["w_kva"], "k_scale": inputs.k_scale, **FORMS[form]}
    lines = got.lines[inputs.slots[taken]]
    check_normed("KV rows", lines, reference.kv_rows, inputs, taken, ULPS, **line)
    if got.q_c is not None:
        w_qa, every = inputs.weights["w_qa"], np.arange(rows)
        check_normed(
            "q_c", got.q_c[:rows], reference.query_norm, inputs, every, TENSOR_ULPS, w_qa=w_qa
        )
    return str(query)


def check_normed(
    name: str,
    got: np.ndarray,
    of: Callable[..., np.ndarray],
    inputs: Inputs,
    rows: np.ndarray,
    ulps: int,
    **given: Any,
) -> None:
    """Each row is that of one reciprocal RMS within ``ulps`` of the exact one."""
    wants = tuple(of(inputs.qkv[rows], eps=inputs.eps, ulps=n, **given) for n in neighbours(ulps))
    verdict = judge(Judged(tolerance.exact, got, wants))
    assert verdict.right, f"{name}: {verdict}"


def expected(form: str, inputs: Inputs, heads: Any = np.s_[:]) -> reference.QueryOutputs:
    """The reference of the processed rows and of ``heads``."""
    count, weights = inputs.heads, dict(inputs.weights)
    weights["w_qb"] = weights["w_qb"].reshape(count, 192, 1536)[heads].reshape(-1, 1536)
    weights["w_uk"] = weights["w_uk"][heads]
    return reference.query(
        inputs.qkv[: inputs.rows],
        **weights,
        q_scale_inv=inputs.q_scale_inv,
        k_scale=inputs.k_scale,
        eps=inputs.eps,
        **FORMS[form],
    )


def sampled_heads(inputs: Inputs, limit: int = 2048) -> np.ndarray:
    """The heads that the reference computes: all while rows times heads stay below ``limit``, else
    as many, the first and the last among them."""
    count = min(inputs.heads, max(2, limit // max(inputs.rows, 1)))
    return np.unique(np.linspace(0, inputs.heads - 1, count).astype(int))
