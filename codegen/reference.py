"""The NumPy reference of every kernel: the specification as code.

Float64 inside; the only roundings are those that the kernels are specified to make. BF16 arrays
go in and out as uint16 bit patterns, FP8 as uint8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .conversions import (
    E4M3_MAX,
    F64,
    Bits16,
    Bytes,
    bytes_of,
    f32,
    from_bf16,
    from_e4m3,
    pack_nibbles,
    pow2_at_or_above,
    round_bf16,
    to_bf16,
    to_e2m1,
    to_e4m3,
)

LORA, KV, NOPE, ROPE = 1536, 512, 128, 64


@dataclass(frozen=True)
class QueryOutputs:
    """``query`` [rows, H, 576] E4M3 bytes or BF16 bits; ``rows`` [rows, W]: each token's cache row;
    ``q_c`` [rows, 1536] BF16 bits."""

    query: Bytes | Bits16
    rows: Bytes
    q_c: Bits16


def rms_norm(x: F64, weight: Bits16, eps: float) -> F64:
    """``bf16((x * rr) * weight)`` with ``rr = 1 / sqrt(mean(x**2) + eps)`` of each row."""
    with np.errstate(all="ignore"):
        rr = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return round_bf16((x * rr) * from_bf16(weight))


def fp8_ds_mla(kv: F64, rope: Bits16) -> Bytes:
    """KV rows [rows, 656] of ``kv`` [rows, 512] and ``rope`` [rows, 64]."""
    tiles = kv.reshape(-1, 4, 128)
    amax = np.abs(tiles).max(axis=-1)
    scale = pow2_at_or_above(np.maximum(f32(amax / E4M3_MAX), f32(1e-4)))
    values = to_e4m3(f32(tiles * (1.0 / scale)[..., None]))
    return np.concatenate(
        (values.reshape(-1, KV), bytes_of(scale, np.float32), rope.view(np.uint8)), axis=-1
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
        (pack_nibbles(to_e2m1(values).reshape(-1, KV)), to_e4m3(rope), scales), axis=-1
    )


def query_norm(qkv: Bits16, *, w_qa: Bits16, eps: float = 1e-6) -> Bits16:
    """The q_c rows: RMSNorm of the q_a columns, rounded to BF16."""
    return to_bf16(rms_norm(from_bf16(qkv[:, :LORA]), w_qa, eps))


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
    kv_a, k_pe = qkv[:, LORA : LORA + KV], qkv[:, LORA + KV : LORA + KV + ROPE]
    with np.errstate(all="ignore"):
        q = round_bf16(from_bf16(q_c) @ from_bf16(w_qb).T).reshape(-1, heads, NOPE + ROPE)
        latent = round_bf16(
            np.einsum("bhk,hkc->bhc", q[..., :NOPE], from_bf16(w_uk), optimize=True)
        )
        whole = np.concatenate((latent, q[..., NOPE:]), axis=-1)
        out = to_bf16(whole) if dsa and not fp8 else to_e4m3(f32(whole * f32(q_scale_inv)))
        kv, rope = rms_norm(from_bf16(kv_a), w_kva, eps), from_bf16(k_pe)
        if nvfp4:
            rows = nvfp4_ds_mla(kv, rope)
        elif dsa and not fp8:
            rows = fp8_ds_mla(kv, k_pe)
        else:
            packed = np.concatenate((kv, rope), axis=-1)
            rows = to_e4m3(f32(packed / f32(k_scale)) if dsa else f32(packed * f32(k_scale)))
    return QueryOutputs(out, rows, q_c)


def sigmoid(x: F64) -> F64:
    """``1 / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def gate(values: Bits16, gates: Bits16, lengths: NDArray[np.int32], *, q: int = 1) -> Bits16:
    """``bf16(value * sigmoid(gate))``; rows of requests whose length is <= 0 are zero.

    Parameters
    ----------
    values
        [H, rows, 128] BF16 bits: W_UV's outputs.
    gates
        [rows, H*128] BF16 bits.
    lengths
        [rows / q] of the requests, ``q`` rows each.
    """
    rows = gates.shape[0]
    flat = from_bf16(values).transpose(1, 0, 2).reshape(rows, -1)
    with np.errstate(all="ignore"):
        out = to_bf16(f32(flat * f32(sigmoid(from_bf16(gates)))))
    out[np.repeat(lengths <= 0, q)[:rows]] = 0
    return out


def value(
    latent: Bits16, w_uv: Bits16, gates: Bits16, lengths: NDArray[np.int32], *, q: int = 1
) -> Bits16:
    """W_UV [H, 128, 512] of the latent [rows, H, 512], then :func:`gate`."""
    with np.errstate(all="ignore"):
        product = np.einsum("bhk,hvk->hbv", from_bf16(latent), from_bf16(w_uv), optimize=True)
        return gate(to_bf16(product), gates, lengths, q=q)


@dataclass(frozen=True)
class FrontValues:
    """What the indexer's front converts: ``q`` [rows, 32, 128] and ``key`` [rows, 128], rounded to
    BF16, and the head weights ``head`` [rows, 32]."""

    q: F64
    key: F64
    head: F64


@dataclass(frozen=True)
class FrontOutputs:
    """``q_out`` [rows, 32, 128 or 64] bytes; ``q_scale`` [rows, 32, 4] bytes (MXFP4); ``w_out``
    [rows, 32] BF16 bits; ``keys`` [rows, 128 or 64] and ``scales`` [rows, 4] bytes."""

    q_out: Bytes
    q_scale: Bytes | None
    w_out: Bits16
    keys: Bytes
    scales: Bytes


def largest(values: F64, nudge: int = 0) -> F64:
    """The largest magnitude along the last axis of BF16 ``values``, ``nudge`` steps of BF16 up."""
    bits = to_bf16(np.abs(values).max(axis=-1)).astype(np.int32)
    return from_bf16(np.clip(bits + nudge, 0, 0xFFFF).astype(np.uint16))


def mxfp4(values: F64, nudge: int = 0) -> tuple[Bytes, Bytes]:
    """Packed E2M1 codes and UE8M0 scales of blocks of 32 along the last axis."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    amax = np.maximum(largest(blocks, nudge), 6 * 2.0**-126)
    ratio = pow2_at_or_above(f32(amax * f32(1 / 6)))
    exponent = np.clip(np.log2(ratio), -127, 127)
    codes = to_e2m1(f32(blocks * np.exp2(-exponent)[..., None])).reshape(values.shape)
    return pack_nibbles(codes), (exponent + 127).astype(np.uint8)


def fp8_scale(amax: F64, floor: float) -> F64:
    """The power of two at or above ``max(amax, floor) / 448``."""
    return pow2_at_or_above(f32(np.maximum(amax, f32(floor)) / E4M3_MAX))


def layer_norm(x: F64, weight: NDArray[np.float32], bias: NDArray[np.float32], eps: float) -> F64:
    """LayerNorm over the last axis, rounded once to BF16."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    return round_bf16(centred * scale * weight + bias)


def front_values(
    projected: Bits16,
    *,
    key: int,
    weight: int,
    w_qa: Bits16,
    wq_b: Bits16,
    norm_w: NDArray[np.float32],
    norm_b: NDArray[np.float32],
    eps: float = 1e-6,
    key_eps: float = 1e-5,
) -> FrontValues:
    """What the indexer's front converts.

    Parameters
    ----------
    projected
        [rows, columns] BF16 bits: 1536 q_a columns first.
    key, weight
        Columns of the 128 key values and of the 32 head weights.
    wq_b
        [4096, 1536] BF16 bits: 32 heads of 128 rows.
    norm_w, norm_b
        [128] of the key's LayerNorm.
    """
    with np.errstate(all="ignore"):
        q_c = from_bf16(query_norm(projected, w_qa=w_qa, eps=eps))
        q = round_bf16(q_c @ from_bf16(wq_b).T).reshape(-1, 32, 128)
        y = layer_norm(from_bf16(projected[:, key : key + 128]), norm_w, norm_b, key_eps)
    return FrontValues(q, y, from_bf16(projected[:, weight : weight + 32]))


def front_outputs(
    given: FrontValues, *, mx: bool = False, fp4: bool = False, nudge: int = 0
) -> FrontOutputs:
    """The conversions of ``given``; ``nudge`` moves the largest magnitudes that scales are of by
    so many steps of BF16, as another order of additions may."""
    with np.errstate(all="ignore"):
        if fp4:
            q_out, q_scale = mxfp4(given.q, nudge)
            keys, scales = mxfp4(given.key, nudge)
            return FrontOutputs(q_out, q_scale, to_bf16(given.head * 2.0**-6), keys, scales)
        scale = fp8_scale(largest(given.q, nudge), 1e-10)
        q_out = to_e4m3(f32(given.q * (1.0 / scale)[..., None]))
        w_out = to_bf16(f32(given.head * scale) * 2.0**-6)
        key_scale = fp8_scale(largest(given.key, nudge), 1e-4)[:, None]
        keys = to_e4m3(f32(given.key * (1.0 / key_scale)))
        scales = bytes_of(key_scale, np.float32)
        if mx:
            exponents = (np.log2(key_scale) + 127).astype(np.uint8)
            scales = np.repeat(exponents, 4, axis=-1)
    return FrontOutputs(q_out, None, w_out, keys, scales)


def index_front(
    projected: Bits16, *, mx: bool = False, fp4: bool = False, **given: Any
) -> FrontOutputs:
    """The indexer's front: queries, head weights and keys; see :func:`front_values`."""
    return front_outputs(front_values(projected, **given), mx=mx, fp4=fp4)
