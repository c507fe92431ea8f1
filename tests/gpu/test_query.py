"""The query kernel on a GPU: stored vectors, then fresh inputs against the reference."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgen.codegen.verify import tolerance

from ..helpers import cases
from ..helpers.cases import FORMS, INF, NAN, SCHEDULES, Inputs, Layout, Memory
from ..helpers.places import DATA

pytestmark = pytest.mark.gpu

RUNS = 100

_spec = importlib.util.spec_from_file_location("kgen_vector_inputs", DATA / "inputs.py")
assert _spec and _spec.loader
vectors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(vectors)
VECTORS = [name for name in vectors.names() if name.startswith("query/")]


@pytest.fixture(scope="module")
def stored() -> Any:
    return np.load(DATA / "query.npz")


def vector(name: str) -> tuple[str, Inputs]:
    """The form and the inputs of a stored case."""
    _, given = vectors.case(name)
    weights = {key: given[key] for key in ("w_qa", "w_kva", "w_qb", "w_uk")}
    return name.split("/")[2], Inputs(
        given["qkv"],
        weights,
        given["slots"],
        len(given["qkv"]),
        float(given["q_scale_inv"]),
        float(given["k_scale"]),
        float(given["eps"]),
        Layout(page=given["page"], pages=given["pages"]),
    )


def check_vector(got: cases.Outputs, inputs: Inputs, stored: Any, name: str) -> None:
    rows, taken = inputs.rows, inputs.taken()
    cases.check_edges(got, inputs)
    verdict = tolerance.close(got.query[:rows], stored[f"{name}/query"][:rows])
    assert verdict.right, f"query: {verdict}"
    lines = tolerance.exact(got.lines[inputs.slots[taken]], stored[f"{name}/rows"][: len(taken)])
    assert lines.right, f"KV rows: {lines}"
    if got.q_c is not None:
        q_c = tolerance.exact(got.q_c[:rows], stored[f"{name}/q_c"][:rows])
        assert q_c.right, f"q_c: {q_c}"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", VECTORS)
def test_stored_vector(name: str, schedule: str, stored: Any) -> None:
    form, inputs = vector(name)
    kernel = cases.kernel(form, inputs.heads, inputs.batch, SCHEDULES[schedule])
    check_vector(cases.launch(kernel, inputs), inputs, stored, name)
    fewer = replace(inputs, rows=inputs.batch // 2)
    check_vector(cases.launch(kernel, fewer), fewer, stored, name)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", [f"query/{s}/{f}" for s in ("8x8", "8x33") for f in FORMS])
def test_the_same_bits_in_every_run(name: str, schedule: str) -> None:
    form, inputs = vector(name)
    kernel = cases.kernel(form, inputs.heads, inputs.batch, SCHEDULES[schedule])
    memories = [Memory.of(kernel, inputs) for _ in range(RUNS)]
    for memory in memories:
        kernel(**memory.arguments)
    first, *others = (memory.outputs() for memory in memories)
    assert all(cases.same(first, other) for other in others)


HEADS = (1, 2, 3, 6, 8, 12, 16, 24, 64, 128)
BATCHES = (*range(1, 10), 15, 16, 17, 31, 33, 63, 64, 65, 128, 200, 256)
PAGES = (1, 16, 64, 128)
# The second saturates about a fourteenth of the query. NOTE: one that saturates nearly all of it
# leaves no magnitude to judge by: the largest of a row is then the clamp's, not the row's.
SCALES = ((4.0, 16.0), (2.0**9, 2.0**9), (2.0**-9, 2.0**-9))


def sweep_case(number: int, heads: int, batch: int) -> Inputs:
    """Inputs whose layout, scales, slots and rows vary with ``number``."""
    layout = Layout(
        page=PAGES[number % 4],
        row_pad=(0, 8, 4096, 160)[number // 2 % 4],
        head_gap=(0, 1, 3)[number % 3],
        page_gap=(0, 0, 1, 5)[number // 3 % 4],
        fused=number % 2 == 1,
    )
    rows = batch if number % 3 else max(1, batch - 1 - number % 2)
    inputs = cases.fresh(heads, batch, rows, layout)
    q_scale_inv, k_scale = SCALES[number // 2 % 3]
    slots = np.full(batch, -1) if number % 7 == 6 else inputs.slots
    return replace(inputs, slots=slots, q_scale_inv=q_scale_inv, k_scale=k_scale)


def check_sweep(form: str, schedule: Any, inputs: Inputs) -> None:
    kernel = cases.kernel(form, inputs.heads, inputs.batch, schedule)
    got = cases.launch(kernel, inputs)
    heads = cases.sampled_heads(inputs)
    cases.check_edges(got, inputs)
    print(cases.check_values(form, got, inputs, heads))


SWEEP = [
    (HEADS[(3 * i + shift) % len(HEADS)], batch)
    for i, batch in enumerate(BATCHES)
    for shift in (0, 5)
]


@pytest.mark.parametrize(
    ("number", "heads", "batch"), [(n, *shape) for n, shape in enumerate(SWEEP)]
)
def test_fresh_inputs(number: int, heads: int, batch: int) -> None:
    check_sweep("dense", None, sweep_case(number, heads, batch))


FORCED = ((1, 1), (3, 9), (2, 17), (6, 33), (12, 8), (5, 65), (2, 200), (1, 256))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("number", "heads", "batch"), [(n, *shape) for n, shape in enumerate(FORCED)]
)
def test_fresh_inputs_by_forced_schedules(
    number: int, heads: int, batch: int, schedule: str
) -> None:
    check_sweep("dense", SCHEDULES[schedule], sweep_case(number, heads, batch))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "dense"])
@pytest.mark.parametrize(
    ("number", "heads", "batch"),
    [(n, *shape) for n, shape in enumerate(((8, 1), (3, 7), (6, 17), (16, 40), (2, 129)))],
)
def test_fresh_inputs_of_other_forms(number: int, heads: int, batch: int, form: str) -> None:
    check_sweep(form, None, sweep_case(number, heads, batch))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_slot_at_all_leaves_the_cache_alone(schedule: str, form: str) -> None:
    inputs = cases.fresh(2, 17)
    inputs = replace(inputs, slots=np.full(17, -1))
    check_sweep(form, SCHEDULES[schedule], inputs)


SPOILT = {
    "q_a NaN": (700, NAN),
    "q_a Inf": (0, INF),
    "q_a -Inf": (1535, INF | 0x8000),
    "q_a all NaN": (slice(0, 1536), NAN),
    "kv_a NaN": (1536, NAN),
    "kv_a Inf": (2047, INF),
    "k_pe NaN": (2048, NAN),
    "k_pe -Inf": (2111, INF | 0x8000),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("batch", [8, 33])
def test_a_spoilt_row_harms_no_other(batch: int, schedule: str, form: str) -> None:
    clean = cases.fresh(3, batch)
    kernel = cases.kernel(form, 3, batch, SCHEDULES[schedule])
    right = cases.launch(kernel, clean)
    for number, (columns, bits) in enumerate(SPOILT.values()):
        row = (7 * number + 5) % batch
        inputs = clean.with_row(row, columns, bits)
        got = cases.launch(kernel, inputs)
        cases.check_edges(got, inputs)
        assert cases.same(without(got, inputs, row), without(right, inputs, row))
        check_spoilt(form, got, inputs, row)


def without(outputs: cases.Outputs, inputs: Inputs, row: int) -> cases.Outputs:
    """The outputs of all rows but ``row``."""
    slot = inputs.slots[row]
    return replace(
        outputs,
        query=np.delete(outputs.query, row, axis=0),
        lines=np.delete(outputs.lines, slot, axis=0) if slot >= 0 else outputs.lines,
        q_c=None if outputs.q_c is None else np.delete(outputs.q_c, row, axis=0),
    )


def check_spoilt(form: str, got: cases.Outputs, inputs: Inputs, row: int) -> None:
    """NaN where the reference has it. Block scales of a KV row with a NaN are nobody's business."""
    want = cases.expected(form, inputs)
    query = tolerance.close(got.query[row : row + 1], want.query[row : row + 1])
    assert query.right, f"spoilt row {row}: {query}"
    if inputs.slots[row] >= 0 and got.lines.shape[-1] == 576:
        line = got.lines[inputs.slots[row]][None]
        assert tolerance.exact(line, want.rows[row : row + 1]).right
