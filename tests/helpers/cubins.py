"""Stand-ins for what NVRTC makes: cubins with a target and no code."""

from __future__ import annotations

import struct
from typing import Any

from kgen.codegen.compiler.cubin import Cubin, Resources
from kgen.codegen.compiler.render import Source

RESOURCES = Resources(
    registers=90, smem_static=0, local_bytes=8, spill_stores=4, spill_loads=4, code_bytes=2048
)


def image(arch: str = "sm_90a", text: str = "") -> bytes:
    """An ELF header for a target, and ``text``."""
    head = bytearray(b"\x7fELF" + bytes(60))
    target = int("".join(filter(str.isdigit, arch)))
    struct.pack_into("<I", head, 0x30, 0x6000004 | target << 8)
    return bytes(head) + text.encode() + bytes(100)


def compiled(source: Source, arch: str, **facts: Any) -> Cubin:
    """What a compiler might make of ``source``: other bytes for another source."""
    made = {"log": "", "resources": RESOURCES, "seconds": 0.25, "waits": True} | facts
    return Cubin(image(arch, source.text), source.entry, arch, **made)
