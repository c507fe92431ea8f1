"""The reference: against the stored vectors, and its roundings at their edges."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from kgen.codegen.reference import query
from kgen.codegen.reference.formats import from_bf16, from_e4m3, to_bf16, to_e4m3
from kgen.codegen.verify import tolerance

from ...data import inputs
from ...helpers.places import DATA

CASES = [name for name in inputs.names() if name.startswith("query/")]


@cache
def stored() -> dict[str, np.ndarray]:
    with np.load(DATA / "query.npz") as file:
        return dict(file)


def run(options: dict[str, Any], given: dict[str, Any]) -> query.QueryOutputs:
    names = ("w_qa", "w_kva", "w_qb", "w_uk", "q_scale_inv", "k_scale", "eps")
    forms = {name: value for name, value in options.items() if name not in ("heads", "batch")}
    return query.query(given["qkv"], **{name: given[name] for name in names}, **forms)


def right(got: np.ndarray, want: np.ndarray) -> bool:
    """By the rule, and with all but 9e-4 of the values exact: the rule alone lets a scale that is
    a few percent off pass."""
    verdict = tolerance.close(got, want)
    return verdict.right and verdict.share_exact >= 1 - 9e-4


def test_there_are_16_dense_vectors() -> None:
    assert len([name for name in CASES if name.endswith("/dense")]) == 16


@pytest.mark.parametrize("name", CASES)
def test_vector(name: str) -> None:
    options, given = inputs.case(name)
    out = run(options, given)
    want = {key.rpartition("/")[2]: stored()[key] for key in stored() if key.startswith(f"{name}/")}
    rows = out.rows[given["slots"] >= 0]
    assert tolerance.exact(rows, want.pop("rows")).right
    assert right(out.query, want.pop("query"))
    for left, bits in want.items():
        assert tolerance.exact(getattr(out, left), bits).right, left


def test_a_wrong_scale_or_weight_is_noticed() -> None:
    options, given = inputs.case("query/8x3/dense")
    want = stored()["query/8x3/dense/query"]
    for name, value in (("q_scale_inv", 8.5), ("w_uk", given["w_uk"] ^ np.uint16(0x80))):
        assert not right(run(options, given | {name: value}).query, want)


@pytest.mark.parametrize("variant", inputs.QUERY_VARIANTS)
@pytest.mark.parametrize("bad", [0x7FC0, 0x7F80])  # NaN, Inf
def test_a_bad_row_spoils_no_other(variant: str, bad: int) -> None:
    options, given = inputs.case(f"query/8x3/{variant}")
    clean = run(options, given)
    qkv = given["qkv"].copy()
    qkv[1, 7] = qkv[1, 1536 + 7] = bad
    spoilt = run(options, given | {"qkv": qkv})
    for name in ("query", "rows"):
        got, want = getattr(spoilt, name), getattr(clean, name)
        np.testing.assert_array_equal(got[[0, 2]], want[[0, 2]])
        assert (got[1] != want[1]).any()


def test_e4m3_rounds_every_midpoint_to_even() -> None:
    codes = np.arange(0x7F, dtype=np.uint8)  # 0 .. 448
    values = from_e4m3(codes)
    np.testing.assert_array_equal(to_e4m3(values), codes)
    np.testing.assert_array_equal(to_e4m3(-values[1:]), codes[1:] | 0x80)
    even = codes[:-1] + (codes[:-1] & 1)
    middles = (values[1:] + values[:-1]) / 2
    np.testing.assert_array_equal(to_e4m3(middles), even)
    np.testing.assert_array_equal(to_e4m3(middles * (1 + 1e-6)), codes[1:])
    np.testing.assert_array_equal(to_e4m3(middles * (1 - 1e-6)), codes[:-1])


@pytest.mark.parametrize(
    ("value", "code"),
    [(449.0, 0x7E), (1e30, 0x7E), (np.inf, 0x7E), (-np.inf, 0xFE), (np.nan, 0x7F), (-0.0, 0x80)],
)
def test_e4m3_saturates_and_has_one_nan(value: float, code: int) -> None:
    assert to_e4m3(np.array([value])) == code


def test_bf16_rounds_to_even_and_reads_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[(bits & 0x7F80) != 0x7F80]
    np.testing.assert_array_equal(to_bf16(from_bf16(finite)), finite)
    values = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20])
    np.testing.assert_array_equal(to_bf16(values), [0x3F80, 0x3F82, 0x3F81])
