"""One compile for all who ask, and nobody waits for the dead."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kgen.codegen.cache import turn

from ...helpers.places import ROOT

COUNT = 8
Racer = subprocess.Popen[str]


@contextmanager
def racers(*args: str, count: int = COUNT) -> Iterator[list[Racer]]:
    """Processes that are ready to build."""
    command = (sys.executable, "-m", "tests.helpers.race", *args)
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        found = [
            stack.enter_context(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
            )
            for _ in range(count)
        ]
        for each in found:
            stack.callback(each.kill)
        assert [line(each) for each in found] == ["ready"] * count
        yield found


def line(racer: Racer) -> str:
    assert racer.stdout
    return racer.stdout.readline().strip()


def start(racers: list[Racer], folder: Path) -> None:
    text = f"{folder} {time.time() + 0.05}\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write(text)
        racer.stdin.flush()


def finish(racers: list[Racer]) -> list[int]:
    for racer in racers:
        assert racer.stdin
        racer.stdin.close()
    return [racer.wait(20) for racer in racers]


def compiles(folder: Path) -> list[str]:
    return folder.with_name("compiles").read_text().split()


def is_clean(folder: Path) -> bool:
    """Whether there is one entry and nothing beside it."""
    (entry,) = folder.iterdir()
    names = sorted(each.name for each in entry.iterdir())
    return names == [f"{entry.name}.cubin", f"{entry.name}.json"]


@pytest.mark.nvrtc
def test_eight_processes_compile_a_cold_key_once(tmp_path: Path) -> None:
    with racers() as asking:
        for number in range(20):
            folder = tmp_path / str(number) / "cache"
            folder.parent.mkdir()
            start(asking, folder)
            digests = {line(each) for each in asking}
            assert len(digests) == 1 and len(digests.pop()) == 64
            assert len(compiles(folder)) == 1
            assert is_clean(folder)
        assert finish(asking) == [0] * COUNT


@pytest.mark.parametrize(("blow", "count"), [(signal.SIGKILL, COUNT), (signal.SIGSTOP, 3)])
def test_the_others_go_on_when_the_winner_is_lost(
    tmp_path: Path, blow: signal.Signals, count: int
) -> None:
    folder = tmp_path / "cache"
    with racers("stuck", count=count) as asking:
        start(asking, folder)
        while not (tmp_path / "winner").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        (winner,) = compiles(folder)
        others = [each for each in asking if each.pid != int(winner)]
        assert len(others) == count - 1
        os.kill(int(winner), blow)
        lost = time.monotonic()
        digests = {line(each) for each in others}
        assert time.monotonic() - lost < 5
        assert len(digests) == 1
        assert finish(others) == [0] * (count - 1)
    if blow == signal.SIGKILL:
        assert len(compiles(folder)) == 2
        assert is_clean(folder)


def test_turns_follow_one_another(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with turn.turn(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_without_locks_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    began = time.monotonic()
    with turn.turn(tmp_path / "lock"), turn.turn(tmp_path / "lock"):
        assert time.monotonic() - began < 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_killed_process_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    began = time.monotonic()
    with turn.turn(tmp_path / "lock"):
        assert time.monotonic() - began < 1
    assert list(tmp_path.iterdir()) == []


def test_a_living_holder_is_waited_for_and_a_silent_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "BEAT", 0.05)
    monkeypatch.setattr(turn, "STALE", 0.4)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turn.turn(tmp_path / "lock"):
            held.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    monkeypatch.setenv("KGEN_TURN_LIMIT", "1")
    began = time.monotonic()
    with turn.turn(tmp_path / "lock"):
        assert 0.9 < time.monotonic() - began < 3, "it beats: waited for up to the limit"
    monkeypatch.setattr(os, "utime", lambda *_args: None)
    began = time.monotonic()
    with turn.turn(tmp_path / "lock"):
        assert time.monotonic() - began < 0.9, "it is silent"
    done.set()
    holder.join()
