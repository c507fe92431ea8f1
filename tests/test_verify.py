"""What `kgen verify` judges, without a GPU: the reference's own outputs, then spoilt ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from kgen import cli
from kgen.codegen import nvml, samples, schema, verify
from kgen.codegen.errors import DeviceError, NotBuiltError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.samples import Arrays, Sample

FORMS = ("", "-dsa", "-dsa-fp8", "-dsa-fp8-nvfp4", "-dsa-no_store_qc")
Run = Callable[..., Arrays]
SLUGS = (*(f"query-h2-b9{form}" for form in FORMS), "query_norm-b9", "query-h1-b1")


def sampled(slug: str) -> tuple[Plan, Sample, list[verify.Expected]]:
    config = schema.parse_slug(slug)
    family = verify.FAMILIES[config.kernel]
    sample = family.sample(config, np.random.default_rng(7))
    return plan(config), sample, list(family.expect(config, sample))


def ideal(made: Plan, sample: Sample, expectations: list[verify.Expected]) -> Arrays:
    """The outputs of a kernel that rounds as the reference does."""
    held = verify.poisoned(made, sample)
    for want in expectations:
        held[want.array][(*want.where, *map(slice, want.want.shape[1:]))] = want.want
    return held


@pytest.mark.parametrize("slug", SLUGS)
def test_the_reference_is_right(slug: str) -> None:
    made, sample, expectations = sampled(slug)
    verdicts = verify.check(made, expectations, ideal(made, sample, expectations))
    assert all(verdict.right and verdict.share_exact == 1 for verdict in verdicts.values())
    outputs = [array for array in made.params.arrays if array.role != "in"]
    assert len(verdicts) == len(outputs) + 1, "every output, and all bytes elsewhere"
    assert all(verdict.count > 0 for verdict in verdicts.values())


@pytest.mark.parametrize("slug", SLUGS)
def test_nothing_done_is_wrong(slug: str) -> None:
    made, sample, expectations = sampled(slug)
    verdicts = verify.check(made, expectations, verify.poisoned(made, sample))
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
    verdicts = verify.check(made, expectations, held)
    assert [key for key, verdict in verdicts.items() if not verdict.right] == [name]


@pytest.mark.parametrize("batch", [1, 2, 8, 33, 256])
def test_launches_are_full_once_and_a_row_apart(batch: int) -> None:
    sample = Sample.of(np.random.default_rng(batch), batch)
    first, *others = sample.launches
    assert first == range(batch) and others
    assert all(1 <= len(rows) <= batch for rows in others)
    assert len(set(sample.live)) == len(sample.live) >= samples.ROWS // 2
    assert set(range(sample.rows)) - set(sample.live) == {rows.stop for rows in sample.launches}


def test_samples_hold_the_edges() -> None:
    sample = samples.query(schema.Query(heads=1, batch=16), np.random.default_rng(3))
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
        expectations = list(verify.FAMILIES["query"].expect(config, sample))
        return ideal(made, sample, expectations)

    fake(monkeypatch, config, run)
    one, two, three = (verify.verify(config, seed=seed, rounds=2) for seed in (5, 5, None))
    assert one.right and one.seed == two.seed == 5 and three.seed != 5
    assert one == two and (seen[0] == seen[2]).all() and (seen[1] == seen[3]).all()
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[4])


def fake(monkeypatch: pytest.MonkeyPatch, config: schema.Config, run: Run) -> None:
    """A GPU is here, and kernels leave what ``run`` says."""
    monkeypatch.setattr(nvml, "require", lambda: None)
    monkeypatch.setattr(verify, "kernel", lambda *_: SimpleNamespace(plan=plan(config)))
    monkeypatch.setattr(verify, "run", run)


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    config = schema.Query(heads=1, batch=2)
    fake(monkeypatch, config, lambda made, sample: verify.poisoned(made.plan, sample))
    result = CliRunner().invoke(cli.kgen, ["verify", config.slug, "--seed", "11"])
    assert result.exit_code == 1
    assert "seed 11" in result.stdout and "WRONG: " in result.stdout
    result = CliRunner().invoke(cli.kgen, ["verify", config.slug, "--json"])
    (data,) = json.loads(result.stdout)
    assert result.exit_code == 1 and not data["right"]
    assert set(data["outputs"]) == {"query", "cache rows", "elsewhere"}


def test_without_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DeviceError("no GPU: NVML says nothing")

    monkeypatch.setattr(nvml, "require", absent)
    result = CliRunner().invoke(cli.kgen, ["verify", "query-h1-b1"])
    assert (result.exit_code, result.stderr) == (1, "Error: no GPU: NVML says nothing\n")


def test_a_family_without_a_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "FAMILIES", {})
    with pytest.raises(NotBuiltError, match="query"):
        verify.verify(schema.Query(heads=1, batch=1))
