"""The NumPy reference of the query kernels: the specification as code (docs/kernels.md).

Sums in float64; the only roundings are those that the kernels are specified to make. BF16 arrays
go in and out as uint16 bit patterns, FP8 as uint8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dims import KV_LORA, NOPE, Q_LORA, ROPE
from .formats import (
    E4M3_MAX,
    F64,
    Bits16,
    Bytes,
    bytes_of,
    f32,
    from_bf16,
    from_e4m3,
    next_f32,
    pack_nibbles,
    pow2_at_or_above,
    round_bf16,
    to_bf16,
    to_e2m1,
    to_e4m3,
)


@dataclass(frozen=True)
class QueryOutputs:
    """``query`` [rows, H, 576] E4M3 bytes or BF16 bits; ``rows`` [rows, W]: each token's cache row;
    ``q_c`` [rows, 1536] BF16 bits."""

    query: Bytes | Bits16
    rows: Bytes
    q_c: Bits16


def rms_norm(x: F64, weight: Bits16, eps: float, ulps: int = 0) -> F64:
    """``bf16((x * rr) * weight)``, FP32 products in this order, where ``rr`` is the FP32 value
    ``ulps`` steps above that nearest to ``1 / sqrt(mean(x**2) + eps)`` of each row."""
    with np.errstate(all="ignore"):
        rr = next_f32(1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + f32(eps)), ulps)
        return round_bf16(f32(f32(x * rr) * from_bf16(weight)))


def fp8_ds_mla(kv: F64, rope: Bits16) -> Bytes:
    """KV rows [rows, 656] of ``kv`` [rows, 512] and ``rope`` [rows, 64]."""
    tiles = kv.reshape(-1, 4, 128)
    amax = np.abs(tiles).max(axis=-1)
    scale = pow2_at_or_above(np.maximum(f32(amax / E4M3_MAX), f32(1e-4)))
    values = to_e4m3(f32(tiles * (1.0 / scale)[..., None]))
    return np.concatenate(
        (values.reshape(-1, KV_LORA), bytes_of(scale, np.float32), rope.view(np.uint8)), axis=-1
    )


def nvfp4_ds_mla(kv: F64, rope: F64) -> Bytes:
    """KV rows [rows, 352] of ``kv`` [rows, 512] and ``rope`` [rows, 64]."""
    blocks = kv.reshape(-1, 32, 16)
    amax = np.abs(blocks).max(axis=-1)
    scale = to_e4m3(np.maximum(f32(amax * f32(1 / 6)), 2.0**-9))
    values = f32(blocks * f32(1.0 / from_e4m3(scale))[..., None])
    place = np.arange(32) % 4 * 8 + np.arange(32) // 4
    scales = np.empty_like(scale)
    scales[:, place] = scale
    return np.concatenate(
        (pack_nibbles(to_e2m1(values).reshape(-1, KV_LORA)), to_e4m3(rope), scales), axis=-1
    )


def query_norm(qkv: Bits16, *, w_qa: Bits16, eps: float = 1e-6, ulps: int = 0) -> Bits16:
    """The q_c rows: RMSNorm of the q_a columns in BF16; ``ulps`` as of :func:`rms_norm`."""
    return to_bf16(rms_norm(from_bf16(qkv[:, :Q_LORA]), w_qa, eps, ulps))


def kv_rows(
    qkv: Bits16,
    *,
    w_kva: Bits16,
    k_scale: float = 1.0,
    eps: float = 1e-6,
    dsa: bool = False,
    fp8: bool = False,
    nvfp4: bool = False,
    ulps: int = 0,
) -> Bytes:
    """The cache row of each token: RMSNorm of the kv_a columns, quantised, and k_pe.

    Parameters are those of :func:`query`, and ``ulps`` of :func:`rms_norm`.
    """
    kv_a, k_pe = np.split(qkv[:, Q_LORA : Q_LORA + KV_LORA + ROPE], [KV_LORA], axis=-1)
    kv, rope = rms_norm(from_bf16(kv_a), w_kva, eps, ulps), from_bf16(k_pe)
    with np.errstate(all="ignore"):
        if nvfp4:
            return nvfp4_ds_mla(kv, rope)
        if dsa and not fp8:
            return fp8_ds_mla(kv, k_pe)
        packed = np.concatenate((kv, rope), axis=-1)
        return to_e4m3(f32(packed / f32(k_scale)) if dsa else f32(packed * f32(k_scale)))


def query(
    qkv: Bits16,
    *,
    w_qa: Bits16,
    w_kva: Bits16,
    w_qb: Bits16,
    w_uk: Bits16,
    q_scale_inv: float = 1.0,
    k_scale: float = 1.0,
    eps: float = 1e-6,
    dsa: bool = False,
    fp8: bool = False,
    nvfp4: bool = False,
) -> QueryOutputs:
    """The query kernel: RMSNorm, Q_B, W_UK absorption, query and KV rows.

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
    q_scale_inv
        Multiplies the query before its conversion to E4M3.
    k_scale
        Per-tensor FP8 rows: multiplies them (dense), or divides them (``dsa`` and ``fp8``).
    """
    heads = w_uk.shape[0]
    q_c = query_norm(qkv, w_qa=w_qa, eps=eps)
    form = {"dsa": dsa, "fp8": fp8, "nvfp4": nvfp4}
    rows = kv_rows(qkv, w_kva=w_kva, k_scale=k_scale, eps=eps, **form)
    with np.errstate(all="ignore"):
        q = round_bf16(from_bf16(q_c) @ from_bf16(w_qb).T).reshape(-1, heads, NOPE + ROPE)
        latent = round_bf16(
            np.einsum("bhk,hkc->bhc", q[..., :NOPE], from_bf16(w_uk), optimize=True)
        )
        whole = np.concatenate((latent, q[..., NOPE:]), axis=-1)
        out = to_bf16(whole) if dsa and not fp8 else to_e4m3(f32(whole * f32(q_scale_inv)))
    return QueryOutputs(out, rows, q_c)
