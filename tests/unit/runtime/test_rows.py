"""How many rows a call has: ``num_rows``, or those that all row arrays agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kgen.codegen.emulator.kernel import Held
from kgen.codegen.errors import ArgumentError
from kgen.codegen.plan import plan
from kgen.codegen.runtime.arguments import Arguments
from kgen.codegen.schema import make

BATCH, HEADS = 8, 2
ARGUMENTS = Arguments(plan(make("value", {"heads": HEADS, "batch": BATCH})).params)


def given(rows: int, **others: int) -> dict[str, Any]:
    """The arrays of a value kernel, each of ``rows`` rows or as ``others`` says."""
    count = {"latent": rows, "gate": rows, "lengths": rows} | others
    arrays: dict[str, np.ndarray] = {
        "latent": np.zeros((count["latent"], HEADS, 512), np.uint16),
        "w_uv": np.zeros((HEADS, 128, 512), np.uint16),
        "gate": np.zeros((count["gate"], HEADS * 128), np.uint16),
        "lengths": np.ones(count["lengths"], np.int32),
    }
    return {name: Held(array) for name, array in arrays.items()}


@pytest.mark.parametrize("rows", [0, 1, 5, BATCH])
def test_rows_are_those_of_the_arrays(rows: int) -> None:
    call = ARGUMENTS.check(given(rows))
    assert call.rows == rows and call.outputs[0].array.shape == (rows, HEADS * 128)


def test_row_arrays_must_agree() -> None:
    with pytest.raises(ArgumentError, match=r"gate: .* holds 6 rows; allowed is 5, as latent has"):
        ARGUMENTS.check(given(5, gate=6))


def test_more_rows_than_the_batch_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"latent: .* holds 9 rows; allowed is at most 8"):
        ARGUMENTS.check(given(9))


def test_num_rows_takes_a_part_of_larger_arrays() -> None:
    assert ARGUMENTS.check(given(9, gate=12) | {"num_rows": 7}).rows == 7


def test_num_rows_needs_arrays_that_hold_them() -> None:
    with pytest.raises(ArgumentError, match=r"gate: .* holds 3 rows; allowed is at least num_rows"):
        ARGUMENTS.check(given(5, gate=3) | {"num_rows": 4})
