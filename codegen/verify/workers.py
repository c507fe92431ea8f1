"""Processes that do one task at a time: whatever becomes of one of them costs its task only."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from ..errors import KgenError

T = TypeVar("T")
R = TypeVar("R")

TICK = 1.0  # seconds between two looks at what runs
THREADS = "OMP_NUM_THREADS"
_SPAWN = get_context("spawn")  # a driver does not survive a fork


class Worker(Generic[T, R]):
    """A process that does what it is given, and ends when something goes wrong."""

    def __init__(self, do: Callable[[T], R]) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(do, theirs), daemon=True)
        with one_thread():
            self._process.start()
        theirs.close()

    def give(self, task: T) -> None:
        """Start ``task``."""
        self.task, self._start = task, time.monotonic()
        self.connection.send(task)

    @property
    def seconds(self) -> float:
        """How long the task has been running."""
        return time.monotonic() - self._start

    def take(self) -> R | Exception:
        """What the task came to."""
        try:
            found: R | Exception = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return KgenError(f"its process ended: {_ending(self._process.exitcode or 0)}")
        return found

    def end(self) -> None:
        """Stop, whatever runs."""
        self._process.terminate()
        self._process.join()
        self.connection.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """What starts here does its sums on one thread: the others work as well."""
    asked = os.environ.get(THREADS)
    os.environ[THREADS] = asked or "1"
    try:
        yield
    finally:
        if asked is None:
            del os.environ[THREADS]


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve(do: Callable[[Any], Any], connection: Connection) -> None:
    """Do tasks until one fails: a driver may be of no use after that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    while True:
        task = connection.recv()
        try:
            connection.send(do(task))
        except (KgenError, OSError) as error:
            connection.send(error)
            return
        except Exception:
            connection.send(RuntimeError(traceback.format_exc()))
            return


def results(
    do: Callable[[T], R],
    tasks: Iterable[T],
    jobs: int,
    tell: Callable[[Sequence[Worker[T, R]]], None],
) -> Iterator[tuple[T, R | Exception]]:
    """Each task with what ``do`` made of it, as they come, ``jobs`` at a time.

    ``do`` is a module's function. ``tell`` is called now and then with those at work.
    """
    waiting = iter(tasks)
    busy: dict[Connection, Worker[T, R]] = {}

    def start(worker: Worker[T, R] | None) -> None:
        for task in waiting:
            worker = worker or Worker(do)
            worker.give(task)
            busy[worker.connection] = worker
            return
        if worker:
            worker.end()

    try:
        for _ in range(jobs):
            start(None)
        while busy:
            ready = wait(list(busy), TICK)
            tell(list(busy.values()))
            for connection in ready:
                worker = busy.pop(connection)  # type: ignore[call-overload]
                task, found = worker.task, worker.take()
                if isinstance(found, Exception):
                    worker.end()
                    worker = None
                start(worker)
                yield task, found
    finally:
        for worker in busy.values():
            worker.end()
