"""Where the mailboxes of a rank lie in its memory: the same on every rank."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import numpy as np

from ..dims import KV_LORA, PARTIAL_SENTINEL, QUERY, QUERY_SENTINEL
from ..errors import ConfigError

PARITIES = 2
ALIGN = 128  # bytes, of each mailbox


@dataclass(frozen=True)
class Box:
    """One kind of mailbox: its argument name, dtype, shape, and the word that says "empty"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sentinel: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Shape:
    """What the mailboxes of every rank have in common.

    Parameters
    ----------
    ranks, heads
        Decode context parallel ranks, and query heads of each.
    capacity
        Token rows that a mailbox holds: the largest ``batch`` of the kernels.
    q_heads
        Rows of a token in the query mailbox, as the kernels' ``q_heads``; 0 is ranks * heads.
    bf16
        BF16 queries (``dsa`` without ``fp8``), else FP8.

    Raises
    ------
    ConfigError
        Naming the field, the value received and what is allowed.
    """

    ranks: int
    heads: int
    capacity: int
    q_heads: int = 0
    bf16: bool = False

    def __post_init__(self) -> None:
        bounds = {"ranks": (2, 64), "heads": (1, 128), "capacity": (1, 1 << 20)}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(name, value, f"allowed is an integer from {low} to {high}")
        if self.q_heads and self.q_heads < self.ranks * self.heads:
            raise ConfigError("q_heads", self.q_heads, "is 0 or at least ranks*heads")

    @property
    def rows(self) -> int:
        """Rows of a token in the query mailbox."""
        return self.q_heads or self.ranks * self.heads

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Each kind of mailbox, in the order of the memory."""
        lse = (self.ranks, self.capacity, self.heads)
        return (
            Box(
                "mailbox",
                "u2" if self.bf16 else "u1",
                (self.capacity, self.rows, QUERY),
                QUERY_SENTINEL,
            ),
            Box("partials", "u2", (*lse, KV_LORA), PARTIAL_SENTINEL),
            Box("lse_box", "f4", lse, QUERY_SENTINEL),
        )

    def box(self, name: str) -> Box:
        """The kind of mailbox that ``name`` is."""
        return next(box for box in self.boxes if box.name == name)

    def place(self, name: str, parity: int) -> int:
        """Bytes from the start of a rank's memory to a mailbox."""
        start = 0
        for box in self.boxes:
            size = _aligned(box.nbytes)
            if box.name == name:
                return start + parity * size
            start += PARITIES * size
        raise KeyError(name)

    @property
    def nbytes(self) -> int:
        """Bytes of a rank's memory, all mailboxes of both parities."""
        return PARITIES * sum(_aligned(box.nbytes) for box in self.boxes)

    @property
    def facts(self) -> bytes:
        """What peers compare before they write."""
        return struct.pack("<5q", self.ranks, self.heads, self.capacity, self.rows, self.bf16)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
