"""Taking turns, so that a kernel is compiled once and not by everyone who waits for it.

Nothing depends on it: who gets no turn, for whatever reason, goes on and does the work too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BEAT = 0.5  # seconds between two signs of life of who has the turn
STALE = 3.5  # seconds without one after which it counts as dead
LIMIT = 120.0  # seconds that anyone waits at most
POLL = 0.01


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Enter when the one who is inside with the same ``path`` is done, dead or silent.

    The lock goes with its process; the signs of life are for locks that do not, such as those of
    a network's file system whose other machine died.
    """
    lock = _acquire(path)
    if lock is None:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_beat, args=(path, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        with suppress(OSError):  # while it is held: who comes next finds the work done
            os.unlink(path)
        with suppress(Exception):
            lock.release()


def _acquire(path: Path) -> Any:
    """The lock of ``path``, or None where it cannot be had or waited for."""
    import filelock

    lock = filelock.FileLock(path, mode=0o600, fallback_to_soft=False)
    give_up, seen, since = time.monotonic() + LIMIT, 0, time.monotonic()
    while time.monotonic() < min(give_up, since + STALE):
        try:
            lock.acquire(blocking=False)
            return lock
        except filelock.Timeout:
            time.sleep(POLL)
        except Exception:  # no locks here (ENOLCK, ENOSYS), no room, no permission
            return _without(path)
        sign = _sign(path)
        if sign != seen:
            seen, since = sign, time.monotonic()
    return None


def _without(path: Path) -> None:
    """Remove the file that a failed lock may have left, unless another process's use shows."""
    with suppress(OSError):
        os.unlink(path)


def _sign(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError):
            os.utime(path)
