"""The NumPy reference of W_UV and the sigmoid gate (docs/kernels.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .formats import F64, Bits16, f32, from_bf16, next_f32, to_bf16


def sigmoid(x: F64) -> F64:
    """``1 / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def gate(
    values: Bits16, gates: Bits16, lengths: NDArray[np.int32], *, q: int = 1, ulps: int = 0
) -> Bits16:
    """``bf16(value * sigmoid(gate))``; rows of requests whose length is <= 0 are zero.

    Parameters
    ----------
    values
        [H, rows, 128] BF16 bits: W_UV's outputs.
    gates
        [rows, H*128] BF16 bits.
    lengths
        [rows / q] of the requests, ``q`` rows each.
    ulps
        How many steps of FP32 above the exact one each sigmoid is.
    """
    rows = gates.shape[0]
    flat = from_bf16(values).transpose(1, 0, 2).reshape(rows, -1)
    with np.errstate(all="ignore"):
        out = to_bf16(f32(flat * next_f32(sigmoid(from_bf16(gates)), ulps)))
    out[np.repeat(lengths <= 0, q)[:rows]] = 0
    return out


def value(
    latent: Bits16, w_uv: Bits16, gates: Bits16, lengths: NDArray[np.int32], *, q: int = 1
) -> Bits16:
    """W_UV [H, 128, 512] of the latent [rows, H, 512], then :func:`gate`."""
    with np.errstate(all="ignore"):
        product = np.einsum("bhk,hvk->hbv", from_bf16(latent), from_bf16(w_uv), optimize=True)
        return gate(to_bf16(product), gates, lengths, q=q)
