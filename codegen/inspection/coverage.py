"""Where each kernel of a matrix would come from, without building any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..build import find
from ..cache.keys import Request
from ..cache.store import Cache
from ..errors import ConfigError
from ..schema import Config, Refused

State = Literal["packaged", "cached", "compile", "impossible"]
WORDS: dict[State, str] = {
    "packaged": "packaged",
    "cached": "cached",
    "compile": "must be compiled",
    "impossible": "cannot exist",
}


@dataclass(frozen=True)
class Row:
    """One kernel: ``place`` is the file that it would come from, or why it cannot exist."""

    name: str
    arch: str
    state: State
    place: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row for people."""
        return WORDS[self.state], self.name, self.arch, self.place


def survey(
    points: Iterable[Config | Refused], archs: Iterable[str], cache: Cache | None = None
) -> tuple[Row, ...]:
    """The rows of ``points`` for every target, in matrix order."""
    store, targets = cache or Cache(), tuple(archs)
    return tuple(_row(point, arch, store) for point in points for arch in targets)


def _row(point: Config | Refused, arch: str, cache: Cache) -> Row:
    if isinstance(point, Refused):
        return Row(point.name, arch, "impossible", point.reason)
    try:
        request = Request.of(point, arch)
    except ConfigError as error:
        return Row(point.slug, arch, "impossible", str(error))
    found = find(request, cache)
    if found is None:
        return Row(point.slug, arch, "compile")
    state: State = "packaged" if found.origin == "package" else "cached"
    return Row(point.slug, arch, state, str(found.path))


def summary(rows: Iterable[Row]) -> str:
    """How many kernels are in each state."""
    states = [row.state for row in rows]
    return ", ".join(f"{states.count(state)} {words}" for state, words in WORDS.items())
