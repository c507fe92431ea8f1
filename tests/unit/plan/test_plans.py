"""Plans: every size, the shared-memory map, the floor, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from kgen.codegen import schema, targets
from kgen.codegen.errors import ConfigError, PlanError
from kgen.codegen.plan import Plan, Schedule, plan
from kgen.codegen.plan.model import stack
from kgen.codegen.schema import Config, Query
from kgen.codegen.targets import SMEM_RESERVED, TARGETS

from ...helpers.configs import forms, legal


def check(made: Plan) -> None:
    """What holds of every plan."""
    assert 1 <= made.cluster <= 8 and made.grid[0] % made.cluster == 0
    assert made.threads % 32 == 0 and made.threads <= 1024
    assert made.smem_bytes <= made.target.smem_per_block
    assert made.ctas_per_sm in (1, 2)
    assert (made.smem_bytes + SMEM_RESERVED) * made.ctas_per_sm <= made.target.smem_per_sm
    end = 0
    for region in made.smem:
        assert region.offset == end
        end += region.size
    assert made.smem_bytes == end
    assert all(r.size > 0 and r.offset % 16 == 0 for r in made.smem)
    assert made.work.seconds > 0


@pytest.mark.parametrize("batches", [range(1, 129), range(129, 257)], ids=["to-128", "to-256"])
def test_every_query_plans(batches: range) -> None:
    for heads in range(1, 129):
        for batch in batches:
            made = plan(Query(heads=heads, batch=batch))
            across, up, tiles = made.grid
            assert (across, up) == (made.cluster, heads)
            assert made.tokens * (tiles - 1) < batch <= made.tokens * tiles
            assert made.ctas_per_sm == 1 + (not made.schedule.alone)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scheme", ["auto", "rows", "ksplit", "wgmma"])
def test_every_target_and_scheme(scheme: str, name: str) -> None:
    for batch in range(1, 257):
        config = Query.model_validate({"heads": 128, "batch": batch, "scheme": scheme})
        if (name, scheme) == ("sm_120a", "ksplit") or (scheme == "wgmma" and name != "sm_90a"):
            with pytest.raises(PlanError):
                plan(config, name)
            continue
        made = plan(config, name)
        check(made)
        assert scheme in ("auto", made.scheme)


def test_every_form() -> None:
    assert {made.scheme for made in forms()} >= {"rows", "ksplit", "wgmma"}
    for made in forms():
        check(made)


@pytest.mark.parametrize(
    ("batch", "default", "blackwell"),
    [
        (1, "rows8", "rows8"),
        (8, "rows8", "rows8"),
        (9, "wgmma16x4", "ksplit16x2"),
        (17, "wgmma32x4", "ksplit16x2"),
        (32, "wgmma32x4", "ksplit16x2"),
        (33, "wgmma64x4", "ksplit32x8"),
        (256, "wgmma64x4", "ksplit32x8"),
    ],
)
def test_the_tables_of_the_targets(batch: int, default: str, blackwell: str) -> None:
    config = Query(heads=8, batch=batch)
    assert plan(config).schedule.name == default
    assert plan(config, "sm_100a").schedule.name == blackwell
    assert plan(config, "sm_120a").schedule == Schedule("rows", 8)


@pytest.mark.parametrize(
    ("slug", "name", "release"),
    [
        ("query-h6-b8", "folded8_alone", "start"),  # both grids' CTAs have an SM each
        ("query-h10-b2", "rows8", "wait"),
        ("query-h12-b2", "folded8", "start"),
        ("query-h12-b8", "rows8", "wait"),
        ("query-h16-b1", "rows8", "start"),
        ("query-h16-b8", "folded8", "start"),
        ("query-h16-b16", "ksplit16x2", "wait"),
        ("query-h128-b8", "rows8", "wait"),
        ("query-h128-b16", "wgmma16x4", "wait"),
        ("query-h8-b1-dsa", "rows8", "wait"),  # q_c's rounding is part of what it computes
        ("query-h16-b1-dsa", "rows8", "start"),
        ("query-h8-b64-dsa", "ksplit32x8", "wait"),
        ("query-h8-b1-dsa-fp8-no_store_qc", "rows8", "wait"),
        ("query-h8-b64-dsa-fp8-no_store_qc", "wgmma64x4", "wait"),
        ("query-h8-b64-dcp2", "ksplit32x8", "wait"),
        ("query-h8-b8-q_b_cp_async", "rows8", "wait"),
    ],
)
def test_what_auto_means_by_heads_and_form(slug: str, name: str, release: str) -> None:
    made = plan(schema.parse_slug(slug))
    assert (made.schedule.name, made.release) == (name, release)


@pytest.mark.parametrize(
    ("batch", "tokens", "tiles"),
    [(1, 16, 1), (16, 16, 1), (17, 32, 1), (33, 64, 1), (65, 64, 2), (256, 64, 4)],
)
def test_a_cluster_takes_all_tokens_that_wgmma_has_room_for(
    batch: int, tokens: int, tiles: int
) -> None:
    made = plan(Query(heads=6, batch=batch, scheme="wgmma"))
    assert (made.tokens, made.k_splits, made.grid) == (tokens, 4, (8, 6, tiles))
    assert (made.threads, made.ctas_per_sm) == (256, 2)


@pytest.mark.parametrize("fields", [{"dsa": True}, {"dsa": True, "fp8": True}])
def test_wgmma_never_forms_q_c(fields: dict[str, bool]) -> None:
    config = schema.make("query", {"heads": 8, "batch": 16, "scheme": "wgmma", **fields})
    with pytest.raises(PlanError, match="scheme: got 'wgmma'; it is for FP8 queries that store no"):
        plan(config)


def test_wgmma_is_an_instruction_of_one_target() -> None:
    with pytest.raises(PlanError, match="scheme: got 'wgmma'; sm_100a has no wgmma; allowed are"):
        plan(Query(heads=8, batch=16, scheme="wgmma"), "sm_100a")


def test_a_schedule_overrides_the_table() -> None:
    made = plan(Query(heads=8, batch=64), schedule=Schedule("ksplit", 16, 2))
    assert (made.tokens, made.k_splits, made.grid) == (16, 2, (8, 8, 4))


def test_a_target_that_is_too_small_is_refused_with_both_numbers() -> None:
    config = Query(heads=8, batch=64, scheme="ksplit")
    needed = plan(config, "sm_90a").smem_bytes
    with pytest.raises(PlanError) as caught:
        plan(config, "sm_120a")
    assert str(caught.value) == (
        "arch: got 'sm_120a'; query-h8-b64-scheme.ksplit (scheme ksplit) needs "
        f"{needed:,} bytes of shared memory a block, sm_120a has 101,376"
    )


def test_an_arch_is_promoted_or_refused() -> None:
    assert plan(Query(heads=8, batch=8), "sm_90") == plan(Query(heads=8, batch=8), "sm_90a")
    with pytest.raises(ConfigError, match=r"arch: got 'sm_80'; allowed are sm_90a, sm_100a, "):
        plan(Query(heads=8, batch=8), "sm_80")


@pytest.mark.parametrize(
    ("fields", "batch"), [({}, 16), ({}, 256), ({"scheme": "ksplit"}, 8), ({"scheme": "rows"}, 64)]
)
def test_q_b_cp_async_belongs_to_the_rows_scheme(fields: dict[str, Any], batch: int) -> None:
    given_ = {"heads": 8, "batch": batch, "q_b_cp_async": True} | fields
    if fields.get("scheme") == "rows":
        assert plan(schema.make("query", given_)).constants["q_b_cp_async"] is True
        return
    with pytest.raises(ConfigError, match=r"q_b_cp_async: got True; .*belongs to the rows scheme"):
        plan(schema.make("query", given_))


# Microseconds on sm_90a: bytes that must move / 4.3 TB/s, the measured bandwidth.
FLOORS = {
    (8, 1): 1.34, (8, 2): 1.35, (8, 8): 1.36, (8, 16): 1.38, (8, 32): 1.41, (8, 64): 1.48,
    (8, 128): 1.62, (12, 1): 2.02, (12, 64): 2.19, (6, 1): 1.01, (6, 8): 1.02, (16, 1): 2.69,
    (16, 64): 2.89,
}  # fmt: skip


@pytest.mark.parametrize(("heads", "batch"), FLOORS)
def test_floor(heads: int, batch: int) -> None:
    made = plan(Query(heads=heads, batch=batch), "sm_90a")
    assert f"{made.work.seconds * 1e6:.2f}" == f"{FLOORS[heads, batch]:.2f}"


def test_bytes_and_flops_that_must_move() -> None:
    weights = 2 * (1536 + 512 + 8 * 192 * 1536 + 8 * 128 * 512)
    a_row = 2 * 2112 + 8 + 576 + 8 * 576  # packed row, slot, cache row, query
    work = plan(Query(heads=8, batch=64)).work
    assert work.bytes == weights + 64 * a_row
    assert work.flops == 2 * 64 * 8 * (192 * 1536 + 128 * 512)


def test_regions_are_stacked_on_16_bytes() -> None:
    regions = stack(("a", 20, ""), ("b", 16, "two"), ("c", 1, ""))
    assert [(r.name, r.offset, r.size) for r in regions] == [
        ("a", 0, 32), ("b", 32, 16), ("c", 48, 16),
    ]  # fmt: skip


@given(legal())
def test_a_legal_configuration_plans(config: Config) -> None:
    try:
        check(plan(config))
    except ConfigError as error:
        assert error.field in ("q_b_cp_async", "scheme")


def test_planning_is_pure_and_loads_no_gpu_library() -> None:
    config = Query(heads=8, batch=64)
    assert plan(config) == plan(config, targets.DEFAULT)
    code = (
        "import sys\nfrom kgen.codegen import plan, schema\n"
        "plan.plan(schema.Query(heads=8, batch=64))\n"
        "print(sorted({'numpy', 'cupy', 'cuda', 'jinja2', 'pynvml', 'torch'} & set(sys.modules)))"
    )
    command = (sys.executable, "-c", code)
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"
