"""How arrays are described to the executor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgen.codegen.emulator.launch import defaults, described, runs, touched
from kgen.codegen.plan import plan
from kgen.codegen.schema import families


def bytes_of(array: np.ndarray[Any, Any]) -> set[int]:
    """The bytes of the items of ``array``, from its first on."""
    starts = itertools.product(*(range(extent) for extent in array.shape))
    firsts = (sum(i * s for i, s in zip(at, array.strides, strict=True)) for at in starts)
    return {first + byte for first in firsts for byte in range(array.itemsize)}


def bytes_of_runs(array: np.ndarray[Any, Any]) -> set[int]:
    levels, run, span = runs(array)
    firsts = itertools.product(*(range(0, extent * stride, stride) for extent, stride in levels))
    found = {sum(at) + byte for at in firsts for byte in range(run)}
    assert span == max(found, default=-1) + 1
    return found


@given(
    extents=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3),
    width=st.sampled_from([1, 2, 4, 8]),
    order=st.randoms(use_true_random=False),
)
def test_runs_are_the_bytes_of_a_padded_view(
    extents: list[tuple[int, int]], width: int, order: Any
) -> None:
    """Gaps after the items of any axis, and axes in any order."""
    whole = np.zeros([extent + gap for extent, gap in extents], f"u{width}")
    view = whole[tuple(slice(extent) for extent, _ in extents)]
    axes = list(range(len(extents)))
    order.shuffle(axes)
    view = view.transpose(axes)
    assert bytes_of_runs(view) == bytes_of(view)


@pytest.mark.parametrize(
    ("strides", "levels", "run"),
    [((0, 2), [], 16), ((4, 2), [], 28), ((16, 2), [], 64), ((18, 2), [(4, 18)], 16)],
    ids=["broadcast", "overlapping", "packed", "padded"],
)
def test_runs_of_rows(strides: tuple[int, int], levels: list[tuple[int, int]], run: int) -> None:
    view = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint16), (4, 8), strides)
    assert runs(view)[:2] == (levels, run)
    assert bytes_of_runs(view) == bytes_of(view)


def test_an_empty_array_has_no_bytes() -> None:
    assert runs(np.zeros((0, 16, 576), np.uint8)) == ([], 0, 0)


def test_a_launch_touches_its_rows() -> None:
    table = plan(families.parse_slug("gate-h2-b8-q4")).params
    arrays = {
        "values": np.zeros((2, 8, 128)),
        "gate": np.zeros((8, 256)),
        "lengths": np.zeros(2),
        "out": np.zeros((8, 256)),
    }
    shapes = {name: array.shape for name, array in touched(table, arrays, 5).items()}
    assert shapes == {"values": (2, 5, 128), "gate": (5, 256), "lengths": (2,), "out": (5, 256)}
    assert defaults(table) == {"num_rows": 8}


def test_tables_of_addresses_are_known() -> None:
    table = np.zeros(2, np.int64)
    names = ("peers", "partial_peers", "lse_peers", "slots")
    assert [described(name, table, 0).addresses for name in names] == [1, 1, 1, 0]
