"""The look-up path of built kernels: the user's cache, then read-only ones.

Whatever is wrong with a cache costs at most a compile and a :class:`CacheWarning` a cause.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from .. import settings
from ..errors import CacheWarning
from .ownership import Untrusted
from .store import Cache, Entry, Problem
from .turn import turn as take_turn


def path(cache: Cache | None = None) -> tuple[Cache, ...]:
    """The caches in the order of look-up; only the first, ``cache``, is ever written."""
    return (cache or Cache(), *map(Cache, settings.CACHE_PATH.value()))


def find(key: str, caches: tuple[Cache, ...]) -> Entry | None:
    """The entry of ``key`` in the first of ``caches`` that has a sound one."""
    for cache in caches:
        found = cache.get(key)
        if isinstance(found, Entry):
            if cache is caches[0]:
                cache.touch(key)
            return found
        if found:
            cause = found.path if found.state == "damaged" else cache.root
            tell(_advice(found, cache is caches[0]), cause)
    return None


@contextmanager
def turn(key: str, cache: Cache) -> Iterator[None]:
    """Enter when no other process is building ``key``: see :mod:`turn`."""
    try:
        cache.make()
    except (OSError, Untrusted):  # storing will say it
        yield
        return
    with take_turn(cache.root / f".lock-{key}"):
        yield


def store(cache: Cache, key: str, image: bytes, meta: Mapping[str, Any]) -> Path | None:
    """Store a kernel and return its path; None where that cannot be."""
    try:
        return cache.put(key, image, meta)
    except Untrusted as error:
        problem = Problem(error.path, "untrusted", error.reason, error.remedy)
        tell(_advice(problem, True), cache.root)
    except OSError as error:
        tell(
            f"the cache {cache.root} cannot be written ({error.strerror or error}): kernels are "
            f"built in memory; set {settings.CACHE_DIR.name} to a writable folder with room",
            cache.root,
        )
    return None


def _advice(problem: Problem, own: bool) -> str:
    if problem.state == "damaged":
        remedy = "the next build sets it aside and replaces it" if own else "remove it there"
        return f"{problem.path} is damaged and not loaded: {problem.text}; {remedy}"
    return f"{problem.path} {problem.text} and is not loaded: {problem.remedy}"


_told: set[Path] = set()
_telling = Lock()


def tell(text: str, cause: Path) -> None:
    """Warn, once a process for what is wrong with the same path."""
    with _telling:
        if cause in _told:
            return
        _told.add(cause)
    warnings.warn(f"{text:.800}", CacheWarning, stacklevel=4)
