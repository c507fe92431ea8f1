"""The NumPy reference of DCP's merge: what every head's owner makes of the ranks' attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..dims import NO_SOURCE
from .formats import F64, Bits16, from_bf16, to_bf16
from .value import value


def merge(rows: Sequence[Bits16], lses: Sequence[NDArray[np.float32]]) -> Bits16:
    """Rows [tokens, H, 512] of each source weighted by ``exp2(lse - max) / sum``; a source at
    NO_SOURCE weighs nothing, and where all do the result is zero. Rounded once to BF16."""
    lse = np.stack([source.astype(np.float64) for source in lses])
    none = lse == np.float64(np.float32(NO_SOURCE))
    weight = np.where(none, 0.0, np.exp2(lse - lse.max(axis=0)))
    total = weight.sum(axis=0)
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    merged: F64 = sum(
        (share[i][..., None] * from_bf16(source) for i, source in enumerate(rows)),
        start=np.zeros(rows[0].shape),
    )
    return to_bf16(merged)


def sent(
    rows: Bits16, lse: NDArray[np.float32], lengths: NDArray[np.int32], q: int
) -> tuple[Bits16, NDArray[np.float32]]:
    """What a source sends of its rows [tokens, heads, 512] and LSEs: zeros and NO_SOURCE where its
    share is empty or the LSE is no number; no negative zero."""
    alive = np.repeat(lengths > 0, q)[: len(rows), None] & np.isfinite(lse)
    clean = np.where(rows & 0x7FFF, rows, 0)
    return (
        np.where(alive[..., None], clean, 0).astype(np.uint16),
        np.where(alive, lse, np.float32(NO_SOURCE)).astype(np.float32),
    )


def dcp_value(
    rows: Sequence[Bits16],
    lses: Sequence[NDArray[np.float32]],
    local_lengths: Sequence[NDArray[np.int32]],
    w_uv: Bits16,
    gates: Bits16,
    lengths: NDArray[np.int32],
    *,
    rank: int,
    q: int = 1,
) -> Bits16:
    """The output of ``rank``, whose heads are its block of every source's.

    Parameters
    ----------
    rows, lses, local_lengths
        Of each rank: [tokens, D*H, 512] BF16 bits, [tokens, D*H] (base 2), [tokens / q].
    w_uv, gates, lengths
        As :func:`value` takes them, of this rank.
    """
    heads = w_uv.shape[0]
    mine = slice(rank * heads, (rank + 1) * heads)
    sources = [
        sent(row[:, mine], lse[:, mine], length, q)
        for row, lse, length in zip(rows, lses, local_lengths, strict=True)
    ]
    merged = merge([row for row, _ in sources], [lse for _, lse in sources])
    return value(merged, w_uv, gates, lengths, q=q)
