"""What decides a cubin's bytes, as labelled fields, and the key that is made of them.

No path, time or name of a kernel is among them: an entry is right wherever it came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..schema import VERSION

if TYPE_CHECKING:
    from ..compiler.render import Source

FORMAT = 1  # of an entry's files


@dataclass(frozen=True)
class Identity:
    """The SHA-256 of each field by its label; an entry's metadata holds them too."""

    fields: Mapping[str, str]

    @cached_property
    def key(self) -> str:
        return combine(self.fields)


def identity(source: Source, arch: str, options: tuple[str, ...], nvrtc: str) -> Identity:
    """The fields of ``source`` compiled for ``arch`` by the NVRTC build ``nvrtc``.

    Kernels include none but kgen's headers, which are all in ``source``; those that NVRTC brings
    along are told by its build.
    """
    fields = {
        "format": str(FORMAT),
        "schema": str(VERSION),
        "text": source.text,
        **{f"header {name}": text for name, text in source.headers},
        "options": "".join(f"{len(option)}:{option}" for option in options),
        "arch": arch,
        "nvrtc": nvrtc,
    }
    return Identity({label: _hash(text) for label, text in fields.items()})


def key(source: Source, arch: str, options: tuple[str, ...], nvrtc: str) -> str:
    """The key of :func:`identity`: a SHA-256 as hex digits."""
    return identity(source, arch, options, nvrtc).key


def combine(fields: Mapping[str, str]) -> str:
    """The key that ``fields`` make, each written with its label and the label's length."""
    return _hash("".join(f"{len(label)}:{label}:{fields[label]}\n" for label in sorted(fields)))


def is_key(name: str) -> bool:
    """Whether ``name`` looks like a key."""
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
