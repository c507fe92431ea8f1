"""`kgen verify`: an entry a kernel whatever happens, results as they come, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kgen import cli
from kgen.codegen.commands import status
from kgen.codegen.errors import DeviceError, EmulationError
from kgen.codegen.runtime import nvml
from kgen.codegen.verify import runs
from kgen.codegen.verify.judge import Verdict
from kgen.codegen.verify.outcome import Trial

PATCH = pytest.MonkeyPatch
WRONG = Verdict("bit for bit", 100, 3, 5, 2, (0, 7))
RIGHT = Verdict("1 step", 100, 1, 9, 0, by_share=1, worst_share=0.0031)


def command(*line: str) -> Result:
    return CliRunner().invoke(cli.kgen, ("verify", *line))


def in_this_process(monkeypatch: PATCH, run: Callable[[runs.Task], Trial]) -> list[int]:
    """Trials are what ``run`` makes of them, the last first; returns the processes asked for."""
    asked: list[int] = []

    def results(_: Any, tasks: Sequence[runs.Task], jobs: int, tell: Any) -> Iterator[Any]:
        asked.append(jobs)
        for task in reversed(tasks):
            tell([])
            try:
                yield task, run(task)
            except Exception as error:
                yield task, error

    monkeypatch.setattr(runs, "results", results)
    return asked


def trial(task: runs.Task) -> Trial:
    """Seed 12 is wrong, kernels of three heads deadlock."""
    if getattr(task.config, "heads", 0) == 3:
        raise EmulationError("it deadlocks")
    return Trial(task.seed, 2, 9, {"out": WRONG if task.seed == 12 else RIGHT})


LINE = ("gate-h1-b2", "gate-h3-b2", "query_norm-b1", "--cpu", "--seed", "11", "--seeds", "2")


def test_an_entry_for_each_kernel_in_the_order_asked_for(monkeypatch: PATCH) -> None:
    in_this_process(monkeypatch, trial)
    done = command(*LINE, "--json")
    first, failed, last = json.loads(done.stdout)
    assert done.exit_code == 1 and "0 right, 2 wrong, 1 failed" in done.stderr
    assert [each["slug"] for each in (first, failed, last)] == [*LINE[:3]]
    assert first["wrong_seeds"] == [12] and not first["right"] and first["errors"] == []
    assert first["arch"] == "sm_90a on the CPU" and (first["launches"], first["rows"]) == (4, 18)
    assert first["outputs"]["out"] == {
        **{"allowed": "1 step", "values": 200, "different": 4, "share_exact": 0.98},
        **{"largest_step": 9, "wrong": 2, "first": [0, 7]},
        **{"by_share": 1, "worst_share": 0.0031, "moved": 0, "farthest": 0},
    }
    assert failed["errors"] == ["it deadlocks"] * 2 and failed["outputs"] == {}


def test_results_are_said_as_they_come(monkeypatch: PATCH) -> None:
    in_this_process(monkeypatch, trial)
    done = command(*LINE)
    places = [done.stdout.index(slug) for slug in LINE[:3]]
    assert places == sorted(places, reverse=True), "the last was over first"
    assert "WRONG: 2 values, the first at (0, 7); allowed: 1 step" in done.stdout
    assert "wrong with seed 12" in done.stdout and done.stdout.count("it deadlocks") == 1


def test_what_is_right_says_by_which_rule_and_how_far_inside(monkeypatch: PATCH) -> None:
    in_this_process(monkeypatch, trial)
    done = command("gate-h1-b2", "--cpu", "--seed", "1")
    assert done.exit_code == 0
    assert "largest step 9  right: 1 step; 2 by their share, the worst 0.31%" in done.stdout


def test_processes_are_as_many_as_asked_for_and_trials_are(monkeypatch: PATCH) -> None:
    asked = in_this_process(monkeypatch, trial)
    monkeypatch.setattr(nvml, "require", lambda: None)
    command("gate-h1-b2", "--cpu", "--seeds", "9", "--jobs", "1", "--seed", "1")
    command("gate-h1-b2", "--seeds", "9", "--seed", "1")
    command("gate-h1-b2", "--seeds", "9", "--seed", "1", "--jobs", "4")
    command("gate-h1-b2", "--seeds", "2", "--seed", "1", "--jobs", "4")
    assert asked == [1, 1, 4, 2]


def test_without_a_gpu_it_says_what_to_do(monkeypatch: PATCH) -> None:
    def absent() -> None:
        raise DeviceError("no GPU: NVML says nothing")

    monkeypatch.setattr(nvml, "require", absent)
    hint = "no GPU: NVML says nothing; with --cpu kernels run without one"
    done = command("query-h1-b1", "gate-h1-b1")
    assert (done.exit_code, done.stderr) == (1, f"Error: {hint}\n")
    done = command("query-h1-b1", "gate-h1-b1", "--json")
    listed = json.loads(done.stdout)
    assert done.exit_code == 1 and [each["errors"] for each in listed] == [[hint]] * 2


@pytest.mark.cpu
def test_a_kernel_that_cannot_be_takes_none_along() -> None:
    line = ("query-h1-b2-dcp2", "gate-h1-b2", "--cpu", "--arch", "sm_120a", "--json", "--seed", "3")
    done = command(*line)
    refused, right = json.loads(done.stdout)
    assert done.exit_code == 1 and right["right"] and right["outputs"]["gate"]["wrong"] == 0
    assert "has no multicast stores" in refused["errors"][0] and not refused["right"]


class Terminal:
    def __init__(self, tty: bool) -> None:
        self.tty, self.text = tty, ""

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: PATCH) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 100 + seconds)


def test_a_terminal_has_one_line_that_goes_away(monkeypatch: PATCH, clock: Any) -> None:
    stderr = Terminal(tty=True)
    monkeypatch.setattr(status.sys, "stderr", stderr)
    line = status.Status()
    clock(41)
    line.show("0 of 2 done; " + "query-h128-b256 " * 99)
    assert stderr.text.startswith("\r\x1b[K41 s: 0 of 2 done; query-h128-b256")
    assert "\n" not in stderr.text and len(stderr.text) < 300
    line.clear()
    assert stderr.text.endswith("\r\x1b[K")


def test_elsewhere_a_line_comes_now_and_then(monkeypatch: PATCH, clock: Any) -> None:
    stderr = Terminal(tty=False)
    monkeypatch.setattr(status.sys, "stderr", stderr)
    line, quiet = status.Status(), status.Status(quiet=True)
    for seconds in (1, 14, 16, 17, 32):
        clock(seconds)
        line.show("0 of 2 done")
        quiet.show("never")
    line.clear()
    assert stderr.text == "16 s: 0 of 2 done\n32 s: 0 of 2 done\n"
