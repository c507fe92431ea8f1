"""The indexer's front on a GPU, in both schemes: vectors, sweeps, and what can be exact."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.bench import uncached
from kgen.codegen.compiler import jobs
from kgen.codegen.plan.index_front import VARIANTS, schedule_of
from kgen.codegen.reference import formats
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.verify import families, gpu, outcome, samples, tolerance
from kgen.codegen.verify.expected import Expected
from kgen.codegen.verify.families.index_front import key_bytes
from kgen.codegen.verify.samples import INF, NAN, Arrays, Sample

from ..data import inputs
from ..helpers.places import DATA

pytestmark = pytest.mark.gpu

VECTORS = [name for name in inputs.names() if name.startswith("front/")]
FORMS: dict[str, dict[str, bool]] = {"fp8": {}, "mx": {"mx": True}, "fp4": {"fp4": True}}
BATCHES = (*range(1, 34), 48, 64)
EVERY_FORM = (1, 8, 9, 16, 17, 33, 64)  # the others take turns
SWEEP = [
    (scheme, batch, form)
    for scheme in VARIANTS
    for number, batch in enumerate(BATCHES)
    for turn, form in enumerate(FORMS)
    if batch in EVERY_FORM or number % len(FORMS) == turn
]
RUNS = 50


@cache
def kernel(scheme: str, batch: int, form: str = "fp8") -> Kernel:
    """The kernel by a scheme that its plan need not choose."""
    config = schema.make("index_front", {"batch": batch, **FORMS[form]})
    return uncached.forced(config, schedule_of(scheme, batch), nvml.default_arch())


@pytest.fixture(scope="module")
def built() -> None:
    """All kernels of the sweep, compiled side by side."""
    with ThreadPoolExecutor(jobs.cores()) as pool:
        list(pool.map(lambda case: kernel(*case), SWEEP))


def judged(made: Kernel, sample: Sample, expectations: list[Expected]) -> None:
    verdicts = outcome.check(made.plan, expectations, gpu.run(made, sample))
    assert all(verdict.right for verdict in verdicts.values()), verdicts


def vector(name: str) -> tuple[Sample, list[Expected]]:
    """A stored case; its keys are those of the tokens that have a slot."""
    _, given = inputs.case(name)
    with np.load(DATA / "front.npz") as file:
        stored = {key.rpartition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}
    names = ("projected", "w_qa", "wq_b", "norm_w", "norm_b", "slots")
    sample = Sample(
        {key: given[key] for key in names},
        (range(len(given["slots"])),),
        {"cache": (given["pages"],)},
        {
            **{key: int(given[key]) for key in ("key", "weight")},
            **{key: float(given[key]) for key in ("eps", "key_eps")},
        },
    )
    live, slots = sample.live, given["slots"][given["slots"] >= 0]
    cells = (slots // 64, slots % 64)
    return sample, [
        Expected("queries", "q_out", (live,), stored["query"], tolerance.close),
        Expected("head weights", "w_out", (live,), stored["weights"], tolerance.exact),
        Expected("keys", "cache", cells, stored["keys"], tolerance.exact, view=key_bytes(0, 128)),
        Expected(
            "scales", "cache", cells, stored["scales"], tolerance.exact, view=key_bytes(8192, 4)
        ),
    ]


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("name", VECTORS)
def test_stored_vector(name: str, scheme: str) -> None:
    sample, expectations = vector(name)
    judged(kernel(scheme, len(sample.live)), sample, expectations)


@pytest.mark.parametrize(("scheme", "batch", "form"), SWEEP)
def test_fresh_inputs(scheme: str, batch: int, form: str, built: None) -> None:
    made = kernel(scheme, batch, form)
    verdicts = gpu.trial(made, zlib.crc32(scheme.encode())).verdicts
    print({name: str(verdict) for name, verdict in verdicts.items()})
    assert all(verdict.right for verdict in verdicts.values()), verdicts


def test_the_sweep_has_every_batch_and_form_in_both_schemes() -> None:
    assert {(scheme, batch) for scheme, batch, _ in SWEEP} == {
        (scheme, batch) for scheme in VARIANTS for batch in BATCHES
    }
    assert {(s, b, f) for s in VARIANTS for b in EVERY_FORM for f in FORMS} <= set(SWEEP)


@pytest.mark.parametrize("release", ["start", "wait", "end"])
def test_the_planned_kernels(release: str) -> None:
    for batch in (8, 32):
        config = schema.make("index_front", {"batch": batch, "release": release})
        outcome = gpu.verify(config, seed=batch)
        assert outcome.right, outcome.text()


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
def test_no_slot_at_all_leaves_the_cache_alone(form: str, scheme: str) -> None:
    made = kernel(scheme, 17, form)
    sample = families.of("index_front").sample(made.config, np.random.default_rng(2))
    sample = replace(sample, arrays=sample.arrays | {"slots": np.full(sample.rows, -1)})
    held = gpu.run(made, sample)
    assert (held["cache"] == outcome.POISON).all()
    expectations = families.of("index_front").expect(made.plan, sample)
    verdicts = outcome.check(made.plan, expectations, held)
    assert all(verdict.right for verdict in verdicts.values()), verdicts


def at_powers(rng: np.random.Generator, groups: int, size: int, top: float) -> np.ndarray:
    """BF16 bits [groups, size]: the largest of a group is ``top`` times a power of two, or a step
    of BF16 beside it; the others lie on the grid of E4M3 and between."""
    largest = formats.to_bf16(top * np.exp2(rng.integers(-12, 6, groups).astype(float)))
    largest = (largest.astype(np.int32) + rng.integers(-1, 2, groups)).astype(np.uint16)
    share = rng.integers(-256, 257, (groups, size)) / 256
    values = formats.to_bf16(formats.from_bf16(largest)[:, None] * share)
    values[np.arange(groups), rng.integers(0, size, groups)] = largest
    return np.asarray(values)


def exact_sample(batch: int, fp4: bool, seed: int) -> Sample:
    """Inputs in which no order of additions matters: rows of +-1, whose RMS is 1, each row of
    wq_b with one value that is not zero; keys of as many +1 as -1."""
    rng = np.random.default_rng(seed)
    base = Sample.of(rng, batch)
    group, top = (32, 6.0) if fp4 else (128, 448.0)
    projected = np.full((base.rows, 2272), NAN, np.uint16)
    signs = rng.choice(np.array([0x3F80, 0xBF80], np.uint16), (base.rows, 1536))
    halves = rng.permuted(
        np.resize(np.array([0x3F80, 0xBF80], np.uint16), (base.rows, 128)), axis=1
    )
    projected[base.live, :1536] = signs[base.live]
    projected[base.live, 2112:2240] = halves[base.live]
    projected[base.live, 2240:] = samples.bf16(rng, len(base.live), 32)
    wq_b = np.zeros((4096, 1536), np.uint16)
    wq_b[np.arange(4096), rng.integers(0, 1536, 4096)] = at_powers(
        rng, 4096 // group, group, top
    ).ravel()
    norm_w = formats.from_bf16(at_powers(rng, 128 // group, group, top)).ravel()
    pages = ceil(2 * base.rows / 64)
    arrays: Arrays = {
        "projected": projected,
        "w_qa": np.full(1536, 0x3F80, np.uint16),
        "wq_b": wq_b,
        "norm_w": norm_w.astype(np.float32),
        "norm_b": np.zeros(128, np.float32),
        "slots": samples.slots(rng, base.rows, pages * 64),
    }
    scalars = {"eps": 1e-6, "key_eps": 1e-6, "key": 2112, "weight": 2240}
    return replace(base, arrays=arrays, extents={"cache": (pages,)}, scalars=scalars)


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(4))
def test_conversions_are_exact_where_sums_are(seed: int, form: str, scheme: str) -> None:
    """Scales at, just below and just above powers of two, in every byte."""
    made = kernel(scheme, 33, form)
    sample = exact_sample(33, form == "fp4", seed)
    listed = families.of("index_front").expect(made.plan, sample)
    judged(made, sample, [replace(each, rule=tolerance.exact, others=()) for each in listed])


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("batch", [8, 33])
@pytest.mark.parametrize("column", [3, 2112, 2240])
def test_a_spoilt_row_harms_no_other(column: int, batch: int, scheme: str) -> None:
    made = kernel(scheme, batch)
    sample = replace(exact_sample(batch, False, 1), launches=(range(batch),))
    clean = gpu.run(made, sample)
    for row, bits in ((0, NAN), (batch - 1, INF)):
        projected = sample.arrays["projected"].copy()
        projected[row, column] = bits
        held = gpu.run(made, replace(sample, arrays=sample.arrays | {"projected": projected}))
        others = np.delete(np.arange(batch), row)
        for name in ("q_out", "w_out"):
            np.testing.assert_array_equal(held[name][others], clean[name][others])
        differs = {n: bool((held[n][row] != clean[n][row]).any()) for n in ("q_out", "w_out")}
        slot = int(sample.arrays["slots"][row])
        cells = np.flatnonzero((held["cache"] != clean["cache"]).reshape(-1))
        where = {3: "q_out", 2240: "w_out"}.get(column)
        assert differs.get(where or "q_out", False) is bool(where)
        page = clean["cache"][0].size
        assert all(cell // page == slot // 64 for cell in cells) if slot >= 0 else not cells.size
        assert bool(cells.size) is (column == 2112 and slot >= 0)


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize(("batch", "form"), [(8, "fp8"), (33, "fp8"), (16, "fp4"), (17, "mx")])
def test_the_same_bits_in_every_run(batch: int, form: str, scheme: str) -> None:
    made = kernel(scheme, batch, form)
    sample = families.of("index_front").sample(made.config, np.random.default_rng(5))
    first, *others = (gpu.run(made, sample) for _ in range(RUNS))
    for other in others:
        for name, array in first.items():
            assert np.array_equal(array, other[name]), name


def test_schemes_agree_where_sums_are_exact() -> None:
    sample: Any = exact_sample(20, False, 9)
    first, second = (gpu.run(kernel(scheme, 20), sample) for scheme in VARIANTS)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)
