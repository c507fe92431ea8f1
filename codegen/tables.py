"""Text tables: Markdown, and columns as wide as their widest cell."""

from __future__ import annotations

from collections.abc import Iterable


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = tuple(header)
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def aligned(rows: Iterable[Iterable[str]]) -> str:
    """Rows in columns as wide as their widest cell."""
    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in padded)
