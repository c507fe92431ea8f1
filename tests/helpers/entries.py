"""Stand-ins for built kernels, for tests of what is kept where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgen.codegen.cache.keys import Request
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler.render import Source
from kgen.codegen.plan import plan
from kgen.codegen.schema import QueryNorm

IMAGE = bytes(range(256)) * 8
OPTIONS = ("--one", "--two")


def named(number: int = 0) -> Request:
    """The request for the kernel ``number``."""
    source = Source("norm.cu", "norm.cu.j2", "norm", f"text {number}", (("a.cuh", "A"),))
    return Request(plan(QueryNorm(batch=8)), source)


def meta(number: int = 0) -> dict[str, Any]:
    """Metadata of the kernel ``number``."""
    fields = dict(named(number).fields)
    facts = {
        "kernel": "query_norm",
        "name": "query_norm_row1",
        "arch": "sm_90a",
        "nvrtc": "13.5",
        "options": OPTIONS,
    }
    return {**facts, "fields": fields}


def put(cache: Cache, number: int = 0) -> Path:
    """Store the kernel ``number``; the path of its folder."""
    return cache.put(named(number).key, IMAGE, meta(number)).parent


def flip(path: Path) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
