"""Taking turns, so that a kernel is compiled once and not by everyone who waits for it.

Nothing depends on it: who gets no turn, for whatever reason, goes on and does the work too.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import settings
from ..logs import logger

BEAT = 0.5  # seconds between two signs of life of who has the turn
STALE = 3.5  # seconds without one after which it counts as dead
TELL = 1.0  # seconds of waiting after which it is told
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
    start = since = time.monotonic()
    seen, told, limit = 0, False, settings.TURN_LIMIT.value()
    while time.monotonic() < min(start + limit, since + STALE):
        try:
            lock.acquire(blocking=False)
            _sign_in(path)
            return lock
        except filelock.Timeout:
            time.sleep(POLL)
        except Exception:  # no locks here (ENOLCK, ENOSYS), no room, no permission
            return _without(path)
        sign = _sign(path)
        if sign != seen:
            seen, since = sign, time.monotonic()
        if not told and time.monotonic() > start + TELL:
            told = True
            logger().warning("waiting for %s, which compiles this kernel (%s)", _holder(path), path)
    return None


def _sign_in(path: Path) -> None:
    """Leave word of who has the turn."""
    with suppress(OSError):
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}")


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"


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
