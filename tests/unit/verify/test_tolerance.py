"""The rules that judge outputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kgen.codegen.verify import tolerance
from kgen.codegen.verify.tolerance import BF16, E4M3


def e4m3(*values: float) -> np.ndarray:
    return np.array([values], np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def bf16(*values: float) -> np.ndarray:
    return np.array([values], np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


@pytest.mark.parametrize(("kind", "dtype"), [(E4M3, np.uint8), (BF16, np.uint16)])
def test_steps_count_the_values_between(kind: tolerance.Format, dtype: type) -> None:
    bits: np.ndarray = np.arange(1 << (8 * np.dtype(dtype).itemsize)).astype(dtype)
    bits = bits[~kind.nans(bits)]
    order = bits[np.argsort(kind.values(bits), kind="stable")]
    steps = kind.steps(order[1:], order[:-1])
    zeros = kind.values(order[1:]) == kind.values(order[:-1])
    assert zeros.sum() == 1
    np.testing.assert_array_equal(steps, np.where(zeros, 0, 1))


def test_nans_are_those_of_the_type() -> None:
    for kind, dtype, count in ((E4M3, np.uint8, 1 << 8), (BF16, np.uint16, 1 << 16)):
        bits = np.arange(count).astype(dtype)
        np.testing.assert_array_equal(kind.nans(bits), np.isnan(kind.values(bits)))


def test_close_takes_one_step_or_one_percent_of_the_row() -> None:
    want = e4m3(1, 2, 448, 0.5)
    assert tolerance.close(want, want) == tolerance.Verdict(4, 0, 0, 0)
    one_step = tolerance.close(want + np.uint8(1) * np.array([[1, 0, 0, 0]], np.uint8), want)
    assert one_step.right and (one_step.different, one_step.largest_step) == (1, 1)
    assert one_step.share_exact == 0.75
    near = tolerance.close(e4m3(1, 2, 448, 3), want)  # 2.5 is less than 4.48
    assert near.right and near.largest_step > 1
    far = tolerance.close(e4m3(1, 8, 448, 0.5), want)
    assert not far.right and (far.wrong, far.first) == (1, (0, 1))
    assert "wrong: 1 values, the first at (0, 1)" in str(far)


def test_close_is_judged_row_by_row() -> None:
    want = np.concatenate((e4m3(448, 1), e4m3(1, 1)))
    got = np.concatenate((e4m3(448, 2), e4m3(1, 2)))
    assert tolerance.close(got, want).first == (1, 1)


def test_close_of_bf16_is_stricter() -> None:
    want = bf16(1000, 1)
    assert tolerance.close(bf16(1000, 5.5), want).right
    assert not tolerance.close(bf16(1000, 6.5), want).right


def test_nans_must_be_where_the_reference_has_them() -> None:
    nan, spoilt = np.array([[0x7F, 0x38]], np.uint8), np.array([[0x7F, 0x7F]], np.uint8)
    assert tolerance.close(nan, nan).right and tolerance.nearly_exact(nan, nan).right
    for rule in (tolerance.close, tolerance.nearly_exact):
        assert rule(spoilt, nan).first == (0, 1)
        assert rule(nan, spoilt).first == (0, 1)


def test_a_nan_of_e4m3_is_never_ff() -> None:
    nan, poison = np.array([[0x7F]], np.uint8), np.array([[0xFF]], np.uint8)
    assert not tolerance.close(poison, nan).right
    assert not tolerance.nearly_exact(poison, nan).right
    assert tolerance.close(np.array([[0xFFFF]], np.uint16), np.array([[0x7FC0]], np.uint16)).right


def test_infinities_leave_the_tolerance_alone() -> None:
    want = bf16(np.inf, 1)
    assert not tolerance.close(bf16(np.inf, 2), want).right
    assert tolerance.close(want, want).right


def test_nearly_exact_allows_few_flips_of_one_step() -> None:
    want = np.full((10, 3000), 0x38, np.uint8)
    got = want.copy()
    got.flat[:3] += 1
    assert tolerance.nearly_exact(got, want).right
    got.flat[:4] = 0x39
    assert tolerance.nearly_exact(got, want).wrong == 4
    got = want.copy()
    got[5, 7] += 2
    assert tolerance.nearly_exact(got, want).first == (5, 7)


def test_exact_tells_zeros_apart() -> None:
    zero, minus = np.array([[0]], np.uint8), np.array([[0x80]], np.uint8)
    assert tolerance.close(minus, zero).right
    assert not tolerance.exact(minus, zero).right
    assert tolerance.exact(zero, zero).right


def test_nothing_is_right() -> None:
    nothing = np.empty((0, 576), np.uint8)
    for rule in (tolerance.close, tolerance.nearly_exact, tolerance.exact):
        assert rule(nothing, nothing).right
        assert rule(nothing, nothing).share_exact == 1


def test_unlike_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8\[1, 1\] and uint16\[1, 1\]"):
        tolerance.close(e4m3(1), bf16(1))
