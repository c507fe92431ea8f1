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


def stepped(bits: np.ndarray, column: int, steps: int) -> np.ndarray:
    """``bits`` with a value that is ``steps`` values of its type further from zero."""
    got = bits.copy()
    got[0, column] += np.array(steps).astype(bits.dtype)
    return got


@pytest.mark.parametrize(("kind", "dtype"), [(E4M3, np.uint8), (BF16, np.uint16)])
def test_steps_count_the_values_between(kind: tolerance.Format, dtype: type) -> None:
    bits: np.ndarray = np.arange(1 << (8 * np.dtype(dtype).itemsize)).astype(dtype)
    bits = bits[~kind.nans(bits)]
    order = bits[np.argsort(kind.values(bits), kind="stable")]
    steps = kind.apart(order[1:], order[:-1])
    zeros = kind.values(order[1:]) == kind.values(order[:-1])
    assert zeros.sum() == 1
    np.testing.assert_array_equal(steps, np.where(zeros, 0, 1))


def test_nans_are_those_of_the_type() -> None:
    for kind, dtype, count in ((E4M3, np.uint8, 1 << 8), (BF16, np.uint16, 1 << 16)):
        bits = np.arange(count).astype(dtype)
        np.testing.assert_array_equal(kind.nans(bits), np.isnan(kind.values(bits)))


def test_an_fp8_value_may_be_one_step_off() -> None:
    want = e4m3(1, 2, 448, 0.5)
    same = tolerance.close(want, want)
    assert same.right and (same.count, same.different, same.largest_step) == (4, 0, 0)
    one = tolerance.close(stepped(want, 2, -1), want)
    assert one.right and (one.different, one.largest_step, one.by_share) == (1, 1, 0)
    assert one.share_exact == 0.75
    two = tolerance.close(stepped(want, 2, -2), want)  # 64 of 448
    assert (two.wrong, two.first) == (1, (0, 2))
    assert "WRONG: 1 values, the first at (0, 2); allowed: 1 step or under 1.5%" in str(two)


def test_an_fp8_value_may_be_closer_than_a_share_of_its_row() -> None:
    want = e4m3(0, 448)  # 1.5% are 6.72
    near = tolerance.close(e4m3(6.5, 448), want)
    assert near.right and near.largest_step > 1
    assert (near.by_share, near.worst_share) == (1, 6.5 / 448)
    assert "1 by their share, the worst 1.45%" in near.reason
    assert not tolerance.close(e4m3(7, 448), want).right


def test_a_bf16_value_may_be_two_steps_off() -> None:
    want = bf16(1, 1, -1)
    for column in range(3):
        for steps in (1, 2, -1, -2):
            found = tolerance.close(stepped(want, column, steps), want)
            assert found.right and found.largest_step == abs(steps) and not found.by_share
        assert not tolerance.close(stepped(want, column, 3), want).right
        assert not tolerance.close(stepped(want, column, -3), want).right


def test_a_bf16_value_may_be_closer_than_a_share_of_its_row() -> None:
    want = bf16(1000, 1)  # 0.5% are 5
    assert tolerance.close(bf16(1000, 5.96875), want).by_share == 1
    assert not tolerance.close(bf16(1000, 6), want).right


def test_rotated_columns_of_a_bf16_query_have_a_share_of_their_own() -> None:
    rule, want = tolerance.Close(rotated=tolerance.ROTATED), bf16(*[0] * 575, 1000)
    within, beyond = bf16(11.9375), bf16(12)
    for column, bits, right in ((512, within, True), (512, beyond, False), (511, within, False)):
        got = want.copy()
        got[0, column] = bits[0, 0]
        assert rule(got, want).right is right
        assert not tolerance.close(got, want).right
    assert "(1.2% in rotated columns)" in rule.allowed(want)
    row = e4m3(*[0] * 575, 448)
    assert not rule(e4m3(*[0] * 512, 7, *[0] * 62, 448), row).right  # 1.6%: FP8 has one share


def test_close_is_judged_row_by_row() -> None:
    want = np.concatenate((e4m3(448, 1), e4m3(1, 1)))
    got = np.concatenate((e4m3(448, 2), e4m3(1, 2)))
    assert tolerance.close(got, want).first == (1, 1)


def test_nans_must_be_where_the_reference_has_them() -> None:
    nan, spoilt = np.array([[0x7F, 0x38]], np.uint8), np.array([[0x7F, 0x7F]], np.uint8)
    assert tolerance.close(nan, nan).right
    assert tolerance.close(spoilt, nan).first == (0, 1)
    assert tolerance.close(nan, spoilt).first == (0, 1)


def test_a_nan_of_e4m3_is_never_ff() -> None:
    nan, poison = np.array([[0x7F]], np.uint8), np.array([[0xFF]], np.uint8)
    assert not tolerance.close(poison, nan).right
    assert tolerance.close(np.array([[0xFFFF]], np.uint16), np.array([[0x7FC0]], np.uint16)).right


def test_infinities_leave_the_tolerance_alone() -> None:
    want = bf16(np.inf, 1)
    assert not tolerance.close(bf16(np.inf, 2), want).right
    assert tolerance.close(want, want).right


def test_exact_tells_zeros_apart() -> None:
    zero, minus = np.array([[0]], np.uint8), np.array([[0x80]], np.uint8)
    assert tolerance.close(minus, zero).right
    assert not tolerance.exact(minus, zero).right
    assert tolerance.exact(zero, zero).right


def test_nothing_is_right() -> None:
    nothing = np.empty((0, 576), np.uint8)
    for rule in (tolerance.close, tolerance.exact):
        assert rule(nothing, nothing).right
        assert rule(nothing, nothing).share_exact == 1


def test_unlike_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8\[1, 1\] and uint16\[1, 1\]"):
        tolerance.close(e4m3(1), bf16(1))
