"""Whatever instruction a kernel may use, the CPU run models it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgen.codegen.compiler.render import TEMPLATES

DEVICE, HOST = TEMPLATES / "ptx", TEMPLATES / "emulator" / "ptx"
FUNCTION = re.compile(r"^[^\s#/][^\n]*?\b(\w+)\(([^()]*)\)(?: \{|;)", re.MULTILINE)
# What only the header itself calls; its twin has no use for it.
INTERNAL = {"globaltimer", "report_and_trap", "mbarrier_try_wait_parity"}

Signature = tuple[str, tuple[str, ...]]


def functions(header: Path) -> set[Signature]:
    """Functions with the types of their parameters."""
    found = FUNCTION.findall(header.read_text(encoding="utf-8"))
    return {
        (name, tuple(re.sub(r"\s*\w+$", "", one.strip()) for one in parameters.split(",") if one))
        for name, parameters in found
    }


HEADERS = sorted(path.name for path in DEVICE.glob("*.cuh") if "asm" in path.read_text())


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with_instructions_has_a_twin_with_the_same_functions(name: str) -> None:
    device, host = functions(DEVICE / name), functions(HOST / name)
    wanted = {signature for signature in device if signature[0] not in INTERNAL}
    assert wanted, name
    assert wanted <= host, f"not modelled: {sorted(wanted - host)}"


def test_a_twin_is_of_a_header() -> None:
    assert {path.name for path in HOST.iterdir()} - {"types.cuh"} <= {*HEADERS}
    assert {"copy.cuh", "mailbox.cuh", "mma.cuh", "numeric.cuh", "sync.cuh"} <= {*HEADERS}


@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_what_has_no_twin_is_called_in_its_header_only(name: str) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TEMPLATES.rglob("*.cu*")}
    assert len([path for path, text in texts.items() if f"{name}(" in text]) == 1
