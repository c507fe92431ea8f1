"""Compiles and forks keep out of each other's way."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FORK_WAIT = 60.0  # seconds, at most, that a fork waits for compiles


class Gate:
    """Keeps a process from being forked in the middle of a compile: the child would inherit the
    compiler's locks, and wait for them for ever."""

    def __init__(self) -> None:
        self._changed, self._busy = threading.Condition(), 0
        os.register_at_fork(
            before=self._shut, after_in_parent=self._open, after_in_child=self._open
        )

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A compile, which forks of other threads wait for."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _shut(self) -> None:
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._busy, FORK_WAIT)

    def _open(self) -> None:
        self._changed.release()


GATE = Gate()
