"""The CPU run is a closed world: an access outside of what it has is reported, not made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kgen.codegen.compiler.render import Source, render
from kgen.codegen.emulator.kernel import Emulation
from kgen.codegen.emulator.launch import runs
from kgen.codegen.errors import EmulationError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import make

from ..helpers.places import DATA

pytestmark = pytest.mark.cpu

ROWS, BATCH, PAGE, SEED = 3, 6, 16, 3
ARRAYS = ("qkv", "w_qa", "w_kva", "w_qb", "w_uk", "cache", "slots", "q_scale_inv", "out")
SHARED = len(ARRAYS)
STEP = ("qkv", "slots", "out")
WORDS = {
    "reads": r"reads \d+ bytes outside of every array: \S+ ",
    "writes": r"writes \d+ bytes outside of every array: \S+ ",
    "shared": r"\d+ bytes at \d+ of shared memory, which has \d+|is of no CTA of the cluster",
}
INSERT = "// A token's row on its way into the cache."
Rng = np.random.Generator
BOUND = re.compile(r"if \(insert\.slot < 0.*\) return;")


@dataclass(frozen=True)
class Access:
    """A case of ``stray.cuh``: what it does with how many bytes, and its line there."""

    number: int
    does: str
    width: int
    line: int


def accesses(text: str) -> list[Access]:
    pattern = re.compile(r"case (\d+): .* // (reads|writes|shared) (\d+)$")
    found = [(line, pattern.search(row)) for line, row in enumerate(text.splitlines(), 1)]
    return [Access(int(m[1]), m[2], int(m[3]), line) for line, m in found if m]


@cache
def query() -> tuple[Plan, Source]:
    made = plan(make("query", {"heads": 1, "batch": BATCH}), "sm_90a")
    return made, render(made)


@cache
def strayer() -> tuple[Emulation, str, list[Access]]:
    """A query kernel whose KV insert makes one access of ``stray.cuh`` instead of rows."""
    made, source = query()
    stray = (DATA / "stray.cuh").read_text(encoding="utf-8")
    text = BOUND.sub("stray(params, lane);\nreturn;", source.text.replace(INSERT, stray + INSERT))
    return Emulation(made, replace(source, text=text)), source.name, accesses(text)


def arena(rng: Rng) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Arguments side by side in one allocation, with gaps in rows and pages; all its bytes."""
    whole = rng.integers(0, 64, 1 << 20, np.uint8)
    end = -whole.ctypes.data % 128

    def cut(dtype: Any, *shape: int, gap: int = 0) -> np.ndarray[Any, Any]:
        """``gap`` items after each item of the first axis."""
        nonlocal end
        inner = int(np.prod(shape[1:])) + gap
        count = shape[0] * inner * np.dtype(dtype).itemsize
        piece = whole[end : end + count].view(dtype).reshape(shape[0], inner)
        end += -(-count // 16) * 16
        return piece[:, : inner - gap] if gap else piece.reshape(shape)

    given = {
        "qkv": cut(np.uint16, BATCH, 2112, gap=64),
        "w_qa": cut(np.uint16, 1536),
        "out": cut(np.uint8, BATCH, 576, gap=64)[:, None],
        "w_kva": cut(np.uint16, 512),
        "cache": np.lib.stride_tricks.as_strided(
            cut(np.uint8, 4, PAGE * 576, gap=128), (4, PAGE, 576), (PAGE * 576 + 128, 576, 1)
        ),
        "slots": cut(np.int64, BATCH),
        "w_uk": cut(np.uint16, 1, 128, 512),
        "q_scale_inv": cut(np.float32, 1),
        "k_scale_inv": cut(np.float32, 1),
        "w_qb": cut(np.uint16, 192, 1536),
    }
    given["q_scale_inv"][:], given["k_scale_inv"][:] = 1, 1
    return whole, given


def places(rng: Rng, name: str, given: dict[str, Any], width: int) -> Iterator[tuple[str, int]]:
    """Kinds of places outside of the array ``name``, and one offset for each."""
    array, wide = given[name], width > 16
    levels, run, span = runs(array[:ROWS] if name in STEP else array)
    end = -(-span // 16) * 16
    yield "just before", -64 if wide else -16
    yield "just after", end
    yield "near", end + 4096
    yield "far", end + 64 * int(rng.integers(1 << 16, 1 << 34))
    yield "far before", -64 * int(rng.integers(1 << 16, 1 << 34))
    yield "wrapped", 64 * int(rng.integers(1 << 56, 1 << 57))
    yield "wrapped before", -64 * int(rng.integers(1 << 56, 1 << 57))
    if name in STEP:
        yield "a row from num_rows on", ROWS * array.strides[0]
    if levels:
        yield "a gap", levels[0][1] - (64 if wide else 16)
        yield "a run's end", run - 16 if wide else run
    other = given[str(rng.choice([each for each in ARRAYS if each != name]))]
    away = other.ctypes.data - array.ctypes.data
    yield "a neighbour", away + int(rng.integers(other.nbytes)) // 64 * 64


def shared_places(rng: Rng, access: Access) -> Iterator[tuple[str, int]]:
    size = query()[0].smem_bytes
    yield "just after", size
    yield "near", size + 4096
    yield "far", 16 * int(rng.integers(size // 16, 1 << 20))
    if access.width > 16:
        yield "over the end", size - 16


def draw(rng: Rng, given: dict[str, Any], access: Access) -> tuple[int, int, str]:
    """An array, an offset from its start, and what kind of place that is."""
    if access.does == "shared":
        found, array = list(shared_places(rng, access)), SHARED
    else:
        array = int(rng.integers(len(ARRAYS)))
        found = list(places(rng, ARRAYS[array], given, access.width))
    kind, offset = found[int(rng.integers(len(found)))]
    return array, offset, kind


def test_a_hundred_random_accesses_are_reported_and_not_made() -> None:
    made, name, cases = strayer()
    rng = np.random.default_rng(13)
    whole, given = arena(rng)
    kinds = set()
    for access in [*cases, *rng.choice(np.array(cases, object), 100 - len(cases))]:
        array, offset, kind = draw(rng, given, access)
        given["slots"][:ROWS] = access.number, array, offset
        before = whole.copy()
        with pytest.raises(EmulationError) as caught:
            made(**given, num_rows=ROWS, seed=SEED)
        report, what = str(caught.value), f"{access} {kind} {array} {offset}"
        assert f"at: {name}:{access.line} in " in report, f"{what}\n{report}"
        assert "CTA (2, 0, 0) thread 261: " in report and report.endswith(f"seed {SEED}"), report
        assert re.search(WORDS[access.does], report), f"{what}\n{report}"
        np.testing.assert_array_equal(whole, before)
        kinds.add(kind)
    assert len(kinds) == 12, kinds
