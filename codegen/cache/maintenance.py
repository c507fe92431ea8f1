"""Looking after a cache: what is wrong with it, and what to remove."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .store import ASIDE, DAY, HOST_FOLDER, Cache, Entry, Problem, discard

HOUR = 3600.0
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SPANS = {"s": 1.0, "m": 60.0, "h": HOUR, "d": DAY, "w": 7 * DAY}


@dataclass(frozen=True)
class Finding:
    """One entry as ``kgen cache verify`` tells of it."""

    path: str
    state: str  # sound, damaged, untrusted, unreadable or aside
    text: str

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Removed:
    """An entry that was removed: its size in bytes, and the seconds since its last use."""

    key: str
    bytes: int
    unused: float

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"unused": round(self.unused)}


def verify(caches: Iterable[Cache]) -> Iterator[Finding]:
    """Every entry of ``caches``, and what builds have set aside as damaged."""
    for cache in caches:
        for each in cache.examine():
            if isinstance(each, Entry):
                yield Finding(str(each.path), "sound", str(each.meta.get("name", "")))
            else:
                yield _finding(each)
        for path in cache.leftovers():
            if path.name.startswith(ASIDE):
                yield Finding(str(path), "aside", "was damaged and replaced; prune removes it")


def _finding(problem: Problem) -> Finding:
    return Finding(str(problem.path), problem.state, problem.text)


def prune(
    cache: Cache, max_size: int | None = None, older_than: float | None = None
) -> list[Removed]:
    """Remove the longest unused entries, until all fit in ``max_size`` bytes, and those unused
    for ``older_than`` seconds; and what was set aside, or left an hour ago by a killed process."""
    removed, now = [], time.time()
    used = sorted(_usage(cache, now), key=lambda each: each.unused)
    total = 0
    for each in used:
        total += each.bytes
        too_much = max_size is not None and total > max_size
        if too_much or (older_than is not None and each.unused >= older_than):
            cache.remove(each.key)
            total -= each.bytes
            removed.append(each)
    for path in cache.leftovers():
        if path.name.startswith(ASIDE) or _age(path, now) > HOUR:
            discard(path)
    return removed


def clear(cache: Cache) -> int:
    """Remove every entry and the CPU run's libraries, nothing else; return how many entries."""
    keys = cache.known()
    for key in keys:
        cache.remove(key)
    for path in cache.leftovers():
        if path.name.startswith(ASIDE):
            discard(path)
    discard(cache.root / HOST_FOLDER)
    return len(keys)


def _usage(cache: Cache, now: float) -> Iterator[Removed]:
    for key in cache.known():
        folder = cache.root / key
        yield Removed(key, _size(folder), _age(folder, now))


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            total += file.stat(follow_symlinks=False).st_size
    return total


def _age(path: Path, now: float) -> float:
    try:
        return now - path.lstat().st_mtime
    except OSError:
        return 0.0


def size(text: str) -> int:
    """Bytes of ``500M``, ``2GB`` or ``2GiB``; the units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ConfigError("--max-size", text, "allowed are bytes, or a number with K, M, G or T")
    return int(float(found[1]) * UNITS[found[2].upper()])


def span(text: str) -> float:
    """Seconds of ``30d``, ``12h``, ``10m``, ``5s`` or ``2w``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([smhdw])", text.strip())
    if not found:
        raise ConfigError("--older-than", text, "allowed is a number with s, m, h, d or w")
    return float(found[1]) * SPANS[found[2]]
