"""Whether a kernel waits for the grids before it on every path, read off its PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator

WAIT = "griddepcontrol.wait"

_LABEL = re.compile(r"^\s*([\w$]+):")
_BRANCH = re.compile(r"^\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+([\w$]+);")
_TABLE = re.compile(r"^\s*(?:@!?%\w+\s+)?brx\.idx")
_END = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:ret|exit)\b")  # a trap ends the grid, not a path


def always_waits(ptx: str, entry: str) -> bool:
    """Whether no path through ``entry`` ends without a wait. Branches through tables are not
    followed: a kernel that has one does not count as waiting."""
    lines = _body(ptx, entry)
    labels = {match[1]: n for n, line in enumerate(lines) if (match := _LABEL.match(line))}
    pending, seen = [0], set[int]()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        if place >= len(lines):
            return False
        line = lines[place]
        if WAIT in line:
            continue
        if _TABLE.match(line):
            return False
        if _END.match(line):
            return False
        pending += _following(line, place, labels)
    return True


def _following(line: str, place: int, labels: dict[str, int]) -> Iterator[int]:
    """Where a line leads to."""
    branch = _BRANCH.match(line)
    if branch:
        yield labels[branch[2]]
    if not branch or branch[1]:
        yield place + 1


def _body(ptx: str, entry: str) -> list[str]:
    """The lines of the entry's body."""
    start = ptx.index("{", ptx.index(f".entry {entry}"))
    return ptx[start:].partition("\n}")[0].splitlines()[1:]
