"""The CPU run tells wrong numbers: single edits of the kernels' arithmetic, each found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgen.codegen import schema
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.emulator.kernel import Emulation
from kgen.codegen.plan import plan
from kgen.codegen.verify import cpu

pytestmark = pytest.mark.cpu

SEED = 7
TILES, NVFP4 = "query-h1-b3-dsa", "query-h1-b3-dsa-fp8-nvfp4"

# What is edited, in which header of which kernel, and the output that is wrong then.
EDITS = {
    "a rounding dropped": (
        NVFP4,
        "query/kv/nvfp4_ds_mla.cuh",
        "__frcp_rn(from_e4m3(scale))",
        "__frcp_rn(fmaxf(amax(row) * (1.0f / 6.0f), 0x1p-9f))",
        "cache rows",
    ),
    "a tile's scale one exponent off": (
        TILES,
        "query/kv/fp8_ds_mla.cuh",
        "lane / 8 * 4) = scale;",
        "lane / 8 * 4) = 2.0f * scale;",
        "cache rows",
    ),
    "a wrong nibble order": (
        NVFP4,
        "math/convert.cuh",
        "return to_e2m1_plain(low) | to_e2m1_plain(high) << 4;",
        "return to_e2m1_plain(high) | to_e2m1_plain(low) << 4;",
        "cache rows",
    ),
    "eps left out": (
        "query_norm-b3",
        "math/norm.cuh",
        "__fdiv_rn(sum, 1536.0f) + eps)",
        "__fdiv_rn(sum, 1536.0f))",
        "q_c",
    ),
    "a truncated value": (
        "query_norm-b3",
        "math/norm.cuh",
        "return to_bf16x2(y.low, y.high);",
        "return __float_as_uint(y.low) >> 16 | (__float_as_uint(y.high) & 0xFFFF0000u);",
        "q_c",
    ),
}


def edited(source: Source, header: str, old: str, new: str) -> Source:
    headers = dict(source.headers)
    assert headers[header].count(old) == 1
    return replace(
        source, headers=tuple((headers | {header: headers[header].replace(old, new)}).items())
    )


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_numerics_is_wrong(name: str) -> None:
    slug, header, old, new, output = EDITS[name]
    made = plan(schema.parse_slug(slug), "sm_90a")
    source = render(made)
    right = cpu.trial(Emulation(made, source), SEED).verdicts
    assert all(verdict.right for verdict in right.values())
    spoiled = cpu.trial(Emulation(made, edited(source, header, old, new)), SEED).verdicts
    assert not spoiled[output].right
