"""The scheme `wgmma` on the CPU: stored vectors, fresh inputs, a wrong swizzle."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from kgen.codegen.compiler.render import render
from kgen.codegen.emulator.kernel import Emulation, emulate
from kgen.codegen.plan import Schedule, plan
from kgen.codegen.plan.schedules import WGMMA16, WGMMA32, WGMMA64
from kgen.codegen.schema import families
from kgen.codegen.verify import cpu, gpu

from ..data import inputs
from ..helpers.vectors import vector

pytestmark = pytest.mark.cpu

SHAPES = {
    "2x7": (WGMMA16,),
    "16x16": (WGMMA16,),
    "8x17": (WGMMA16, WGMMA32, WGMMA64),
    "8x33": (WGMMA32, WGMMA64),
    "8x64": (WGMMA64,),
    "8x65": (WGMMA64,),
}
FP8 = [
    (name, schedule)
    for name in inputs.names()
    for schedule in SHAPES.get(name.split("/")[1], ())
    if name.startswith("query/") and not name.endswith("/dsa")
]
FRESH = (
    *("query-h1-b9-scheme.wgmma", "query-h3-b31-scheme.wgmma", "query-h1-b129-scheme.wgmma"),
    "query-h1-b20-scheme.wgmma-dsa-fp8-nvfp4-late-no_store_qc",
    "query-h1-b47-scheme.wgmma-dsa-fp8-no_release-no_store_qc",
    "query-h1-b17-scheme.wgmma-dcp2-transport.unicast",
    "query-h1-b33-scheme.wgmma-dcp2-dsa-fp8-no_store_qc",
)


@pytest.mark.parametrize(("name", "schedule"), FP8, ids=lambda v: getattr(v, "tokens", v))
def test_query_vector(name: str, schedule: Schedule) -> None:
    """As queries that store no q_c: x times w_qa is rounded before the norm."""
    family, fields, sample, expectations = vector(name)
    fields |= {"store_qc": False} if "dsa" in name else {}
    made = emulate(family, schedule=schedule, **fields)
    held = cpu.run(made, sample, zlib.crc32(f"{name} {schedule}".encode()))
    verdicts = gpu.check(made.plan, [e for e in expectations if e.name != "q_c"], held)
    assert {"query", "rows"} <= verdicts.keys()
    assert all(verdict.right for verdict in verdicts.values()), verdicts


@pytest.mark.parametrize("slug", FRESH)
def test_fresh_inputs(slug: str) -> None:
    outcome = cpu.verify(families.parse_slug(slug), seed=zlib.crc32(slug.encode()))
    assert outcome.right, outcome.text()


def test_a_wrong_swizzle_gives_wrong_queries() -> None:
    """No order is violated: only the values tell."""
    made = plan(families.parse_slug("query-h1-b9-scheme.wgmma"))
    source = render(made)
    text = source.text.replace("(piece ^ row % 8)", "(piece ^ row % 4)")
    assert text != source.text
    verdicts = cpu.trial(Emulation(made, replace(source, text=text)), 0).verdicts
    assert [name for name, verdict in verdicts.items() if not verdict.right] == ["query"]
