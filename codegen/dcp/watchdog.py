"""What a watchdog's kernel leaves in the host's memory before it traps: which word never came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WORDS = 4  # of 32 bits: box and rank, token, head, word; as templates/ptx/mailbox.cuh stores them
EMPTY = 0xFFFFFFFF
BOXES = ("mailbox", "partials", "lse_box")  # in the order of ptx/mailbox.cuh's numbers


@dataclass(frozen=True)
class Overdue:
    """A word that a poll waited for until its watchdog's limit was over.

    ``box`` is the mailbox's name, ``rank`` the rank whose word it is. ``head`` counts the heads of
    all ranks in the query mailbox, the owner's in the others; ``word`` counts 32-bit words of the
    head's row.
    """

    owner: int
    box: str
    rank: int
    token: int
    head: int
    word: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} never sent word {self.word} of head {self.head}, token {self.token},"
            f" to {self.box} of rank {self.owner}"
        )


class Report:
    """Sixteen bytes of the host that a GPU can write: pinned, where ``library`` is CuPy."""

    def __init__(self, library: Any) -> None:
        if cuda := getattr(library, "cuda", None):
            self._memory = cuda.alloc_pinned_memory(4 * WORDS)
            self._words = np.frombuffer(self._memory, np.uint32, WORDS)
        else:
            self._words = np.empty(WORDS, np.uint32)
        self._words[:] = EMPTY
        self.address = int(self._words.ctypes.data)

    def read(self, owner: int) -> Overdue | None:
        """What was reported to rank ``owner``; None while no watchdog's limit is over."""
        kind, *rest = map(int, self._words)
        if kind == EMPTY:
            return None
        return Overdue(owner, BOXES[kind >> 16], kind & 0xFFFF, *rest)
