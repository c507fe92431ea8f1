"""The DCP kernels compile well, polling kernels say what they need, and lone ranks are refused."""

from __future__ import annotations

import pytest

from kgen.codegen.bench import timing
from kgen.codegen.build import build_many
from kgen.codegen.commands import text
from kgen.codegen.errors import ConfigError, PlanError
from kgen.codegen.inspection import disasm
from kgen.codegen.plan import plan
from kgen.codegen.schema import parse_slug
from kgen.codegen.targets import TARGETS
from kgen.codegen.verify import gpu

from ..helpers.places import ROOT

DATACENTER = [name for name, target in TARGETS.items() if target.multimem]
QUERIES = tuple(
    f"query-h2-b{batch}-dcp2{form}{rest}"
    for batch in (8, 16, 33)
    for form, rest in (("", ""), ("", "-transport.unicast"), ("-dsa", "-q_heads64"))
)
OTHERS = ("query-h2-b8-dcp2-dsa-fp8-nvfp4", "query-h2-b64-dcp8-no_poll-transport.unicast")
TAILS = ("query_wait-h8-b64-dcp2", "dcp_value-h8-b64-dcp2", "dcp_value-h2-b16-dcp8-bf16-q_heads64")


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", DATACENTER)
def test_dcp_kernels_compile_without_spills(arch: str) -> None:
    results = build_many(map(parse_slug, (*QUERIES, *OTHERS, *TAILS)), [arch])
    assert [result.error for result in results if result.error] == []
    for result in results:
        assert result.artifact
        found = result.artifact.cubin.resources
        where = result.artifact.plan.config.slug
        assert (found.spill_stores, found.spill_loads, found.local_bytes) == (0, 0, 0), where
        assert result.artifact.cubin.log == "", where


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", DATACENTER)
@pytest.mark.parametrize("batch", [8, 16, 33])
def test_the_ptx_shows_the_transport(arch: str, batch: int) -> None:
    """SASS has no name of its own for the multicast store."""
    many = disasm.inspect(parse_slug(f"query-h2-b{batch}-dcp2"), arch).ptx
    one = disasm.inspect(parse_slug(f"query-h2-b{batch}-dcp2-transport.unicast"), arch).ptx
    assert many.count("multimem.st.relaxed.sys.global") >= 2
    assert "multimem" not in one and "st.relaxed.sys.global.v4" in one
    assert "st.relaxed.sys.global" not in many.replace("multimem.st.relaxed.sys.global", "")
    for ptx in (many, one):
        assert "ld.volatile.global.v4" in ptx


def test_multicast_is_refused_where_there_is_none() -> None:
    with pytest.raises(PlanError, match=r"transport: got 'multicast'; sm_120a has no multicast"):
        plan(parse_slug("query-h2-b8-dcp2"), "sm_120a")
    assert plan(parse_slug("query-h2-b8-dcp2-transport.unicast"), "sm_120a")


@pytest.mark.parametrize(
    ("slug", "alone", "shared"),
    [
        ("query-h8-b8-dcp2", 8, 16),
        ("query-h8-b64-dcp2", 8, 32),
        ("query-h8-b64-dcp2-no_poll", 0, 0),
        ("query-h8-b64", 0, 0),
        ("dcp_value-h8-b16-dcp2", 8, 16),
        ("dcp_value-h6-b33-dcp2", 6, 36),
    ],
)
def test_clusters_that_must_run_at_once(slug: str, alone: int, shared: int) -> None:
    made = plan(parse_slug(slug))
    assert (made.resident(1), made.resident(2)) == (alone, shared)
    assert text.plan_data(made)["polling"] == alone
    assert ("polls for ever" in text.plan_text(made)) == bool(alone)


def test_a_plan_says_when_its_watchdog_barks() -> None:
    made = plan(parse_slug("query-h8-b8-dcp2-watchdog250"))
    assert "it traps after 250 ms" in text.plan_text(made)


H200 = 30  # clusters of 8 that it runs at once, by its driver (benchmarks/dcp.py)


def largest(ranks: int, batch: int) -> str:
    fit = max((h for h in range(1, 33) if needed(ranks, h, batch) <= H200), default=0)
    return str(fit or "none")


def needed(ranks: int, heads: int, batch: int) -> int:
    return plan(parse_slug(f"query-h{heads}-b{batch}-dcp{ranks}-no_release")).resident(ranks)


def test_the_readmes_table_of_what_fits() -> None:
    text = (ROOT / "README.md").read_text()
    ends = (16, 64, 96, 128, 192, 256)
    for ranks in (2, 4, 8):
        row = " | ".join([str(ranks), *(largest(ranks, batch) for batch in ends)])
        assert f"| {row} |" in text, row


@pytest.mark.parametrize("slug", ["query-h1-b1-dcp2", "query_wait-h1-b1-dcp2", TAILS[1]])
def test_a_rank_alone_is_refused_in_plain_words(slug: str) -> None:
    config = parse_slug(slug)
    for run in (gpu.verify, lambda one: timing.run([one])):
        with pytest.raises(ConfigError, match=r"dcp: got 2; .* runs one rank alone"):
            run(config)
