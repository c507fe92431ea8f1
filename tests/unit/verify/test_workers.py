"""Processes that do tasks: each task has its end, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from kgen.codegen.errors import ConfigError
from kgen.codegen.verify import workers
from kgen.codegen.verify.workers import Worker, results


def do(task: str) -> str:
    """A task of its name."""
    match task:
        case "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "leaves":
            os._exit(3)
        case "refuses":
            raise ConfigError("heads", 300, "at most 128")
        case "breaks":
            raise ValueError("a mistake of ours")
        case "threads":
            return os.environ[workers.THREADS]
        case "waits":
            time.sleep(2.5 * workers.TICK)
    return task


def run(*tasks: str, jobs: int = 2) -> dict[str, Any]:
    return dict(results(do, tasks, jobs, lambda at_work: None))


def test_one_that_fails_costs_its_task_only() -> None:
    found = run("one", "dies", "leaves", "two", "refuses", "breaks", "three", "four")
    assert all(found[name] == name for name in ("one", "two", "three", "four"))
    assert str(found["dies"]) == "its process ended: SIGSEGV"
    assert str(found["leaves"]) == "its process ended: exit code 3"
    assert isinstance(found["refuses"], ConfigError) and "300" in str(found["refuses"])
    assert isinstance(found["breaks"], RuntimeError)
    assert str(found["breaks"]).startswith("Traceback")
    assert "ValueError: a mistake of ours" in str(found["breaks"])


def test_more_processes_than_tasks_and_none() -> None:
    assert run("one", jobs=5) == {"one": "one"} and run() == {}


def test_sums_are_on_one_thread(monkeypatch: Any) -> None:
    monkeypatch.delenv(workers.THREADS, raising=False)
    assert run("threads") == {"threads": "1"}
    assert workers.THREADS not in os.environ


def test_who_is_at_work_is_told_while_it_lasts() -> None:
    seen: list[tuple[str, ...]] = []

    def tell(at_work: Sequence[Worker[str, str]]) -> None:
        seen.append(tuple(worker.task for worker in at_work))

    assert [*results(do, ["waits"], 1, tell)] == [("waits", "waits")]
    assert len(seen) >= 2 and {*seen} == {("waits",)}


def test_who_stops_listening_ends_them() -> None:
    running = results(do, ["one", "waits", "waits"], 2, lambda at_work: None)
    start = time.monotonic()
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 20
