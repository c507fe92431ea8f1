"""What a compiled kernel is: its image, and facts about it, checked before they are trusted."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What one thread (``registers``, the stack and spills, in bytes) or block takes."""

    registers: int
    smem_static: int
    local_bytes: int  # deepest stack of a thread, spills included
    spill_stores: int
    spill_loads: int
    code_bytes: int


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel; ``log`` holds warnings only, ``seconds`` what the compiler took. Where it
    ``waits`` for the grids before it on every path, it may be launched before they end."""

    image: bytes
    entry: str
    arch: str
    log: str
    resources: Resources
    seconds: float
    waits: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What is kept beside the image."""
        return {
            "entry": self.entry,
            "arch": self.arch,
            "log": self.log,
            "resources": asdict(self.resources),
            "seconds": round(self.seconds, 4),
            "waits": self.waits,
        }

    @classmethod
    def of(cls, image: bytes, facts: Mapping[str, Any], entry: str, arch: str) -> Cubin:
        """A kernel of the name ``entry`` for ``arch`` from its image and the facts kept beside it.

        Raises
        ------
        ValueError
            Where a fact is missing, of another type, or not true of the image.
        """
        for name, want in (("entry", entry), ("arch", arch)):
            if facts.get(name) != want:
                raise ValueError(f"{name}: expected {want}, found {facts.get(name)!r:.60}")
        resources = _typed(facts, "resources", dict)
        names = [field.name for field in fields(Resources)]
        counts = {name: _typed(resources, name, int) for name in names}
        if (found := elf_target(image)) != (target := int("".join(filter(str.isdigit, arch)))):
            raise ValueError(f"image: expected code for sm_{target}, found sm_{found}")
        log, waits = _typed(facts, "log", str), _typed(facts, "waits", bool)
        seconds = float(_typed(facts, "seconds", (int, float)))
        return cls(image, entry, arch, log, Resources(**counts), seconds, waits)


def _typed(facts: Mapping[str, Any], name: str, kind: Any) -> Any:
    found = facts.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f"{name}: found {found!r:.60}")
    return found


def elf_target(image: bytes) -> int:
    """The compute capability that an ELF image is for, 90 for sm_90a; ValueError if it is none."""
    if image[:4] != b"\x7fELF" or len(image) < 64:
        raise ValueError("image: expected an ELF file")
    return int(struct.unpack_from("<I", image, 0x30)[0]) >> 8 & 0xFF


def sections(elf: bytes | mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    base = headers[names][4]
    for name, _, _, _, offset, length in headers:
        start = base + name
        yield elf[start : elf.find(b"\0", start)].decode(), offset, length
