"""Facts about a cubin are checked before they are trusted."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kgen.codegen.compiler.cubin import Cubin, Resources, elf_target

RESOURCES = Resources(64, 0, 0, 0, 0, 4096)


def image(target: int = 90) -> bytes:
    """An ELF header for ``sm_<target>``."""
    head = bytearray(b"\x7fELF" + bytes(92))
    struct.pack_into("<I", head, 0x30, 0x6000004 | target << 8)
    return bytes(head)


MADE = Cubin(image(), "kgen_gate", "sm_90a", "", RESOURCES, 0.25, True)


def test_facts_lead_back_to_the_cubin() -> None:
    assert Cubin.of(MADE.image, MADE.facts, "kgen_gate", "sm_90a") == MADE


def test_a_target_is_read_off_the_image() -> None:
    assert [elf_target(image(n)) for n in (90, 100, 103, 120)] == [90, 100, 103, 120]
    with pytest.raises(ValueError, match="expected an ELF file"):
        elf_target(b"cubin")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"entry": "other"}, "entry: expected kgen_gate, found 'other'"),
        ({"arch": "sm_100a"}, "arch: expected sm_90a, found 'sm_100a'"),
        ({"resources": 7}, "resources: found 7"),
        ({"resources": {"registers": 64}}, "smem_static: found None"),
        ({"resources": dict.fromkeys(vars(RESOURCES), "64")}, "registers: found '64'"),
        ({"resources": dict.fromkeys(vars(RESOURCES), True)}, "registers: found True"),
        ({"log": None}, "log: found None"),
        ({"seconds": "soon"}, "seconds: found 'soon'"),
        ({"waits": 1}, "waits: found 1"),
    ],
)
def test_a_wrong_fact_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Cubin.of(MADE.image, MADE.facts | changed, "kgen_gate", "sm_90a")


def test_an_image_for_another_target_is_refused() -> None:
    with pytest.raises(ValueError, match="expected code for sm_90, found sm_100"):
        Cubin.of(image(100), MADE.facts, "kgen_gate", "sm_90a")


@pytest.mark.parametrize("lost", list(MADE.facts))
def test_a_fact_that_lacks_is_named(lost: str) -> None:
    facts = {name: fact for name, fact in MADE.facts.items() if name != lost}
    with pytest.raises(ValueError, match=lost):
        Cubin.of(MADE.image, facts, "kgen_gate", "sm_90a")
