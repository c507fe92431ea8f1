"""Virtual ranks on the CPU: their mailboxes in the host's memory, and a launch of all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dcp.layout import Shape
from ..dcp.mailboxes import Mailboxes
from .executor import Emulated
from .kernel import poisoned
from .launch import MAILBOX, Rank, defaults, touched

MULTICAST = 0x700000000000  # stands for the mailboxes of every rank


def aligned(array: Any) -> NDArray[Any]:
    """A copy that starts where a device's array would."""
    given = np.asarray(array)
    copy = poisoned((given.nbytes,), 1).view(given.dtype).reshape(given.shape)
    copy[...] = given
    return copy


def boxes_of(shape: Shape) -> list[Mailboxes]:
    """The connected mailboxes of every rank."""
    made = [
        Mailboxes(rank, shape, memory=aligned(np.zeros(shape.nbytes, np.uint8)), library=np)
        for rank in range(shape.ranks)
    ]
    for box in made:
        box.connect([peer.address for peer in made], multicast=MULTICAST)
    return made


def words(array: NDArray[Any]) -> NDArray[np.uint32]:
    """The 32-bit words of a mailbox."""
    return array.reshape(-1).view(np.uint32)


def filled(boxes: Sequence[Mailboxes], name: str, parity: int) -> bool:
    """Whether all of a mailbox is sentinels, on every rank."""
    sentinel = boxes[0].shape.box(name).sentinel
    return all(bool((words(box.view(name, parity)) == sentinel).all()) for box in boxes)


def launch(
    made: Emulated,
    boxes: Sequence[Mailboxes],
    given: Sequence[Mapping[str, Any]],
    parity: int,
    *,
    seed: int,
    lazy: bool = True,
    num_rows: Sequence[int] | None = None,
) -> None:
    """One launch of every rank at once, of ``num_rows`` rows each.

    Parameters
    ----------
    made
        The kernel of all ranks.
    boxes, given, num_rows
        By rank: the mailboxes, the other arguments by name, and how many rows, not the batch.
    parity
        Of the mailboxes.
    seed, lazy
        As :class:`Emulated` takes them.
    """
    table = made.plan.params
    by_value = defaults(table)
    rows = num_rows or [each.get("num_rows", by_value["num_rows"]) for each in given]
    ranks = []
    for box, arguments, count in zip(boxes, given, rows, strict=True):
        taken = {**arguments, **box.arguments(made, parity), "num_rows": count}
        scalars = {name: taken.pop(name) for name in by_value if name in taken}
        packed, multicast = made.packed(taken, scalars), scalars.get("multicast", 0)
        arrays = touched(table, taken, count)
        arrays[MAILBOX] = box.view(MAILBOX, parity)[: max(rows)]  # it takes those of all ranks
        ranks.append(Rank(packed, arrays, box.rank, multicast))
    made.run_ranks(ranks, seed=seed, lazy=lazy)
