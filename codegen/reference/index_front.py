"""The NumPy reference of the DSA indexer's front (docs/kernels.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .formats import (
    E4M3_MAX,
    F64,
    Bits16,
    Bytes,
    bytes_of,
    f32,
    from_bf16,
    pack_nibbles,
    pow2_at_or_above,
    round_bf16,
    to_bf16,
    to_e2m1,
    to_e4m3,
)
from .query import query_norm


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
