"""The NumPy reference of every kernel: the specification as code.

Float64 inside; the only roundings are those that the kernels are specified to make. BF16 arrays
go in and out as uint16 bit patterns, FP8 as uint8.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits16 = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
F64 = NDArray[np.float64]

LORA, KV, NOPE, ROPE = 1536, 512, 128, 64
E4M3_MAX, E4M3_NAN = 448.0, 0x7F


@dataclass(frozen=True)
class QueryOutputs:
    """``query`` [rows, H, 576] E4M3 bytes; ``rows`` [rows, 576]: each token's cache row."""

    query: Bytes
    rows: Bytes


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
    return np.where(np.isnan(values), np.uint8(E4M3_NAN), bits)


def from_e4m3(bits: Bytes) -> F64:
    """The values of E4M3 bit patterns."""
    values: F64 = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return values


def rms_norm(x: F64, weight: Bits16, eps: float) -> F64:
    """``bf16((x * rr) * weight)`` with ``rr = 1 / sqrt(mean(x**2) + eps)`` of each row."""
    with np.errstate(all="ignore"):
        rr = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return round_bf16((x * rr) * from_bf16(weight))


def query(
    qkv: Bits16,
    *,
    w_qa: Bits16,
    w_kva: Bits16,
    w_qb: Bits16,
    w_uk: Bits16,
    q_scale_inv: float,
    k_scale_inv: float,
    eps: float = 1e-6,
) -> QueryOutputs:
    """The dense query kernel: RMSNorm, Q_B, W_UK absorption, FP8 query and KV rows.

    Parameters
    ----------
    qkv
        [rows, >=2112] BF16 bits: 1536 q_a, 512 kv_a, 64 k_pe columns.
    w_qa, w_kva
        [1536], [512] BF16 bits: the RMSNorm weights.
    w_qb
        [H*192, 1536] BF16 bits: per head 128 nope rows, then 64 rope rows.
    w_uk
        [H, 128, 512] BF16 bits.
    q_scale_inv, k_scale_inv
        Multiply the query and the KV row before their conversion to E4M3.
    """
    heads = w_uk.shape[0]
    row = from_bf16(qkv)
    with np.errstate(all="ignore"):
        q_c = rms_norm(row[:, :LORA], w_qa, eps)
        q = round_bf16(q_c @ from_bf16(w_qb).T).reshape(-1, heads, NOPE + ROPE)
        latent = round_bf16(
            np.einsum("bhk,hkc->bhc", q[..., :NOPE], from_bf16(w_uk), optimize=True)
        )
        whole = np.concatenate((latent, q[..., NOPE:]), axis=-1)
        kv = rms_norm(row[:, LORA : LORA + KV], w_kva, eps)
        packed = np.concatenate((kv, row[:, LORA + KV : LORA + KV + ROPE]), axis=-1)
        return QueryOutputs(to_e4m3(whole * q_scale_inv), to_e4m3(packed * k_scale_inv))
