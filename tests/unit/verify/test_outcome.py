"""What `kgen verify` judges, without a GPU: the reference's own outputs, then spoilt ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.plan import Plan, plan
from kgen.codegen.reference import formats, index_front
from kgen.codegen.runtime import nvml
from kgen.codegen.verify import families, gpu, outcome, samples
from kgen.codegen.verify.expected import Expected
from kgen.codegen.verify.samples import Arrays, Sample

FORMS = ("", "-dsa", "-dsa-fp8", "-dsa-fp8-nvfp4", "-dsa-no_store_qc")
Run = Callable[..., Arrays]
SLUGS = (
    *(f"query-h2-b9{form}" for form in FORMS),
    *("query_norm-b9", "query-h1-b1"),
    *("value-h2-b9", "value-h1-b1", "value-h3-b12-q4", "value-h1-b3-q3-no_release"),
    *("gate-h2-b9", "gate-h1-b8-q2"),
    *("index_front-b9", "index_front-b1", "index_front-b9-mx", "index_front-b40-fp4"),
)


def sampled(slug: str) -> tuple[Plan, Sample, list[Expected]]:
    config = schema.parse_slug(slug)
    family = families.of(config.kernel)
    sample = family.sample(config, np.random.default_rng(7))
    made = plan(config)
    return made, sample, list(family.expect(made, sample))


def ideal(made: Plan, sample: Sample, expectations: list[Expected]) -> Arrays:
    """The outputs of a kernel that rounds as the reference does."""
    held = outcome.poisoned(made, sample)
    for want in expectations:
        want.view(held[want.array])[want.index] = want.want
    return held


@pytest.mark.parametrize("slug", SLUGS)
def test_the_reference_is_right(slug: str) -> None:
    made, sample, expectations = sampled(slug)
    verdicts = outcome.check(made, expectations, ideal(made, sample, expectations))
    assert all(verdict.right and verdict.share_exact == 1 for verdict in verdicts.values())
    outputs = [array for array in made.params.arrays if array.role != "in"]
    judged = {want.array for want in expectations}
    assert judged == {array.name for array in outputs} and "elsewhere" in verdicts
    assert all(verdict.count > 0 for verdict in verdicts.values())


@pytest.mark.parametrize("slug", SLUGS)
def test_nothing_done_is_wrong(slug: str) -> None:
    made, sample, expectations = sampled(slug)
    verdicts = outcome.check(made, expectations, outcome.poisoned(made, sample))
    assert verdicts.pop("elsewhere").right
    assert verdicts and not any(verdict.right for verdict in verdicts.values())


def far_query(held: Arrays, sample: Sample) -> None:
    held["out"][sample.live[3], 1, 17] ^= 0x80
    held["out"][sample.live[3], 1, 18:40] = 0x7E


def flipped_q_c(held: Arrays, sample: Sample) -> None:
    held["q_c"][sample.live[::2], 5] += 1


def one_cache_byte_two_steps_off(held: Arrays, sample: Sample) -> None:
    page = sample.extents["cache"][1]
    slot = sample.arrays["slots"][sample.live]
    slot = slot[slot >= 0][0]
    line = held["cache"][slot // page, slot % page]
    line[7] ^= 0x06


def row_past_the_last(held: Arrays, sample: Sample) -> None:
    held["out"][sample.launches[0].stop, 0, 0] = 0


def gap_between_rows(held: Arrays, _: Sample) -> None:
    held["out"][0, 2, 575] = 0


def cell_of_no_slot(held: Arrays, sample: Sample) -> None:
    page = sample.extents["cache"][1]
    free = next(c for c in range(10**6) if c not in set(sample.arrays["slots"][sample.live]))
    held["cache"][free // page, free % page, 100] = 0


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (far_query, "query"),
        (flipped_q_c, "q_c"),
        (one_cache_byte_two_steps_off, "cache rows"),
        (row_past_the_last, "elsewhere"),
        (gap_between_rows, "elsewhere"),
        (cell_of_no_slot, "elsewhere"),
    ],
)
@pytest.mark.parametrize("slug", ["query-h2-b9-dsa", "query-h2-b9-dsa-fp8-nvfp4"])
def test_each_fault_is_found(slug: str, spoil: Callable[[Arrays, Sample], None], name: str) -> None:
    made, sample, expectations = sampled(slug)
    held = ideal(made, sample, expectations)
    spoil(held, sample)
    verdicts = outcome.check(made, expectations, held)
    assert [key for key, verdict in verdicts.items() if not verdict.right] == [name]


def negative_zero(held: Arrays, sample: Sample) -> None:
    rows = sample.live[np.repeat(sample.arrays["lengths"] <= 0, sample.q)[sample.live]]
    held["out"][rows[0], 5] = 0x8000


def far_value(held: Arrays, sample: Sample) -> None:
    rows = sample.live[np.repeat(sample.arrays["lengths"] > 0, sample.q)[sample.live]]
    row = held["out"][rows[-1]]
    row[9] = np.uint16(np.max(row[:256] & 0x7FFF) + 0x100)


def gap_of_values(held: Arrays, _: Sample) -> None:
    held["out"][0, 256] = 0


def gap_between_requests(held: Arrays, sample: Sample) -> None:
    held["out"][sample.launches[0].stop + sample.q - 1, 3] = 0


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (negative_zero, "empty requests"),
        (far_value, ""),
        (gap_of_values, "elsewhere"),
        (gap_between_requests, "elsewhere"),
    ],
)
@pytest.mark.parametrize("slug", ["value-h2-b8-q2", "gate-h2-b9"])
def test_each_fault_of_values_is_found(
    slug: str, spoil: Callable[[Arrays, Sample], None], name: str
) -> None:
    assert wrong_after(slug, spoil) == [name or slug.partition("-")[0]]


def wrong_after(slug: str, spoil: Callable[[Arrays, Sample], None]) -> list[str]:
    """The names of what is found wrong in the reference's outputs once they are spoilt."""
    made, sample, expectations = sampled(slug)
    held = ideal(made, sample, expectations)
    spoil(held, sample)
    verdicts = outcome.check(made, expectations, held)
    return [key for key, verdict in verdicts.items() if not verdict.right]


def page_bytes(held: Arrays, sample: Sample) -> tuple[np.ndarray, int]:
    """The bytes of the first token's page, and its place there."""
    slot = next(slot for slot in sample.arrays["slots"][sample.live] if slot >= 0)
    return held["cache"].reshape(len(held["cache"]), -1)[slot // 64], int(slot % 64)


def far_query_code(held: Arrays, sample: Sample) -> None:
    held["q_out"][sample.live[3], 5, 6:9] ^= 0x88


def doubled_head_weight(held: Arrays, sample: Sample) -> None:
    held["w_out"][sample.live[4], 31] += 0x80


def key_of_another_page_offset(held: Arrays, sample: Sample) -> None:
    page, place = page_bytes(held, sample)
    width = held["cache"].shape[-1] - 4
    page[width * place : width * (place + 1)] ^= 0x88


def one_scale_byte(held: Arrays, sample: Sample) -> None:
    page, place = page_bytes(held, sample)
    page[(held["cache"].shape[-1] - 4) * 64 + 4 * place + 3] += 1


def behind_the_scales(held: Arrays, sample: Sample) -> None:
    page, _ = page_bytes(held, sample)
    page[held["cache"].shape[-1] * 64] = 0


TIED = {"keys": ("key scales",)}
FRONT_FAULTS: list[tuple[Callable[[Arrays, Sample], None], str]] = [
    (far_query_code, "queries"),
    (doubled_head_weight, "head weights"),
    (key_of_another_page_offset, "keys"),
    (one_scale_byte, "key scales"),
    (behind_the_scales, "elsewhere"),
]


@pytest.mark.parametrize(("spoil", "name"), FRONT_FAULTS)
@pytest.mark.parametrize("form", ["", "-mx", "-fp4"])
def test_each_fault_of_the_front_is_found(
    form: str, spoil: Callable[[Arrays, Sample], None], name: str
) -> None:
    """What shares a scale with it may be found wrong as well."""
    found = wrong_after(f"index_front-b9{form}", spoil)
    assert name in found and {*found} <= {name, *TIED.get(name, ())}


def front_of(sample: Sample, **options: Any) -> index_front.FrontOutputs:
    given: dict[str, Any] = {
        name: sample.arrays[name] for name in ("wq_b", "w_qa", "norm_w", "norm_b")
    }
    rows = sample.arrays["projected"][sample.live]
    values = index_front.front_values(rows, **given, **sample.scalars)
    return index_front.front_outputs(values, **options)


@pytest.mark.parametrize("nudge", [1, -1])
@pytest.mark.parametrize("fp4", [False, True])
def test_a_scale_may_flip_only_where_the_largest_is_at_a_power(nudge: int, fp4: bool) -> None:
    """Outputs whose scales are of largest magnitudes a step of BF16 off are right; two steps are
    not."""
    made, sample, expectations = sampled(f"index_front-b40{'-fp4' * fp4}")
    for steps, right in ((nudge, True), (2 * nudge, False)):
        held = ideal(made, sample, expectations)
        flipped = front_of(sample, fp4=fp4, nudge=steps)
        assert (held["q_out"][sample.live] != flipped.q_out).any()
        held["q_out"][sample.live] = flipped.q_out
        scales = "q_scale" if fp4 else "w_out"
        held[scales][sample.live] = getattr(flipped, scales)
        verdicts = outcome.check(made, expectations, held)
        judged = (verdicts["queries"], verdicts["query scales" if fp4 else "head weights"])
        assert all(verdict.right for verdict in judged) is right
        assert verdicts["elsewhere"].right


def test_samples_of_gates_hold_the_edges() -> None:
    sample = families.of("value").sample(
        schema.Value(heads=2, batch=8, q=2), np.random.default_rng(1)
    )
    lengths, gates = sample.arrays["lengths"], sample.view("gate")
    empty = np.repeat(lengths <= 0, 2)
    values = formats.from_bf16(gates)
    assert (lengths[sample.live[::2] // 2] <= 0).any() and (lengths > 0).any()
    assert not np.isfinite(values[empty]).any()
    live = values[np.setdiff1d(sample.live, np.flatnonzero(empty))]
    assert {-np.inf, -88, 88, np.inf} <= set(live.flat) and not np.isnan(live).any()
    assert all(len(rows) % 2 == rows.start % 2 == 0 for rows in sample.launches)


def test_samples_of_the_front_differ_in_layout() -> None:
    config = schema.IndexFront(batch=8)
    made = [
        families.of("index_front").sample(config, np.random.default_rng(seed)) for seed in range(12)
    ]
    orders = {sample.scalars["key"] < sample.scalars["weight"] for sample in made}
    assert orders == {True, False}
    assert len({sample.arrays["projected"].shape[1] for sample in made}) > 3
    for sample in made:
        width, key, weight = (
            sample.arrays["projected"].shape[1],
            *(sample.scalars[name] for name in ("key", "weight")),
        )
        assert key % 8 == width % 8 == 0 and max(key + 128, weight + 32) <= width
        assert key >= weight + 32 or weight >= key + 128


@pytest.mark.parametrize("batch", [1, 2, 8, 33, 256])
def test_launches_are_full_once_and_a_row_apart(batch: int) -> None:
    sample = Sample.of(np.random.default_rng(batch), batch)
    first, *others = sample.launches
    assert first == range(batch) and others
    assert all(1 <= len(rows) <= batch for rows in others)
    assert len(set(sample.live)) == len(sample.live) >= samples.ROWS // 2
    assert set(range(sample.rows)) - set(sample.live) == {rows.stop for rows in sample.launches}


def test_samples_hold_the_edges() -> None:
    sample = families.of("query").sample(schema.Query(heads=1, batch=16), np.random.default_rng(3))
    slots, qkv = sample.arrays["slots"], sample.arrays["qkv"]
    live = qkv[sample.live, :2112]
    assert (slots[sample.live] < 0).any() and len(set(slots[slots >= 0])) == (slots >= 0).sum()
    assert (live == 0).all(axis=1).any(), "a row of zeros"
    assert not ((live & 0x7F80) == 0x7F80).any()
    dead = np.delete(qkv, sample.live, axis=0)
    assert (dead == samples.NAN).all() and (qkv[:, 2112:] == samples.NAN).all()


def test_a_seed_repeats_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = schema.Query(heads=1, batch=2)
    seen: list[np.ndarray] = []

    def run(_: object, sample: Sample) -> Arrays:
        seen.append(sample.arrays["qkv"])
        made = plan(config)
        expectations = list(families.of("query").expect(made, sample))
        return ideal(made, sample, expectations)

    fake(monkeypatch, config, run)
    one, two, three = (gpu.verify(config, seed=seed, seeds=2) for seed in (5, 5, None))
    assert one.right and one.seed == two.seed == 5 and three.seed != 5
    assert one == two and (seen[0] == seen[2]).all() and (seen[1] == seen[3]).all()
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[4])


def fake(monkeypatch: pytest.MonkeyPatch, config: schema.Config, run: Run) -> None:
    """A GPU is here, and kernels leave what ``run`` says."""
    monkeypatch.setattr(nvml, "require", lambda: None)
    monkeypatch.setattr(gpu, "kernel", lambda *_: SimpleNamespace(plan=plan(config)))
    monkeypatch.setattr(gpu, "run", run)
