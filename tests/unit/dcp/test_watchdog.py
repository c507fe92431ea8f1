"""What a watchdog reports, as the host reads it; that kernels write it is shown on a GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.compiler.nvrtc import compile
from kgen.codegen.compiler.render import render
from kgen.codegen.dcp import layout
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.dcp.watchdog import BOXES, Overdue
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import plan

SLUGS = (
    *("query-h8-b8-dcp2-watchdog50", "query-h8-b16-dcp2-dsa-watchdog50"),
    *("query-h8-b64-dcp2-transport.unicast-watchdog50", "query_wait-h8-b8-dcp2-watchdog50"),
    "dcp_value-h8-b8-dcp2-watchdog50",
)


def boxes() -> Mailboxes:
    shape = layout.Shape(2, 1, 4)
    memory = np.empty(shape.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    return Mailboxes(1, shape, memory=memory[start : start + shape.nbytes], library=np)


def report(box: Mailboxes, *words: int) -> None:
    """What a kernel stores at the address that it was given."""
    plain = plan(schema.parse_slug("query_wait-h1-b4-dcp2-watchdog50"))
    address = box.arguments(type("Kernel", (), {"plan": plain}), 0)["report"]
    (ctypes.c_uint32 * 4).from_address(address)[:] = list(words)


@pytest.mark.parametrize("number", range(len(BOXES)))
def test_the_word_that_never_came_is_named(number: int) -> None:
    box = boxes()
    assert box.overdue() is None
    report(box, number << 16 | 0, 3, 1, 143)
    found = box.overdue()
    assert found == Overdue(1, BOXES[number], 0, 3, 1, 143)
    text = f"rank 0 never sent word 143 of head 1, token 3, to {BOXES[number]} of rank 1"
    assert str(found) == text


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize("slug", SLUGS)
def test_kernels_with_a_watchdog_compile_without_spills(slug: str, arch: str) -> None:
    source = render(plan(schema.parse_slug(slug), arch))
    assert "params.report" in source.text
    made = compile(source, arch)
    assert made.resources.spill_stores == made.resources.spill_loads == 0


def test_a_watchdog_needs_a_poll() -> None:
    with pytest.raises(ConfigError, match="watchdog needs dcp and poll"):
        schema.make("query", {"heads": 1, "batch": 1, "watchdog": 5})
    with pytest.raises(ConfigError, match="watchdog"):
        schema.make("query_wait", {"heads": 1, "batch": 1, "dcp": 2, "watchdog": -1})
