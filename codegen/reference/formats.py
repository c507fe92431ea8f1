"""Number formats in NumPy: every conversion that kernels make, and no other rounding.

BF16 goes in and out as uint16 bit patterns, FP8 and FP4 as uint8.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits16 = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
F64 = NDArray[np.float64]

E4M3_MAX, E4M3_NAN, E2M1_MAX_CODE = 448.0, 0x7F, 7


def from_bf16(bits: Bits16) -> F64:
    """The values of BF16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def to_bf16(values: F64) -> Bits16:
    """Round to nearest even BF16."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def round_bf16(values: F64) -> F64:
    """The values after one rounding to BF16."""
    return from_bf16(to_bf16(values))


def to_e4m3(values: F64) -> Bytes:
    """Round to nearest even E4M3, saturating at +-448; NaN gives 0x7F, as ``cvt.rn.satfinite``."""
    clipped = np.clip(values, -E4M3_MAX, E4M3_MAX).astype(np.float32)
    bits = clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(values), E4M3_NAN, bits).astype(np.uint8)


def from_e4m3(bits: Bytes) -> F64:
    """The values of E4M3 bit patterns."""
    values: F64 = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return values


def to_e2m1(values: F64) -> Bytes:
    """Round to nearest even E2M1, saturating at +-6; NaN gives +6, as ``cvt.rn.satfinite``."""
    clipped = np.clip(values, -6.0, 6.0).astype(np.float32)
    codes = clipped.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.where(np.isnan(values), E2M1_MAX_CODE, codes).astype(np.uint8)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two codes a byte, the even column in the low nibble."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def pow2_at_or_above(values: F64) -> F64:
    """The power of two at or above positive ``values``, each first rounded to FP32."""
    mantissa, exponent = np.frexp(values.astype(np.float32))
    return np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))


def f32(values: F64 | float) -> F64:
    """One FP32 operation's result: the exact ``values`` rounded to FP32."""
    return np.asarray(values, np.float32).astype(np.float64)


def next_f32(values: F64, steps: int) -> F64:
    """The FP32 values ``steps`` above those nearest to ``values``; only positive ones move."""
    near = values.astype(np.float32)
    bits = near.view(np.int32) + np.int32(steps)
    return np.where((near > 0) & (near < np.inf), bits.view(np.float32), near).astype(np.float64)


def bytes_of(values: F64, dtype: type[np.generic] | str) -> Bytes:
    """The memory of ``values`` converted to ``dtype``, as bytes along the last axis."""
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8)
