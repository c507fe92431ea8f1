"""Run all that needs a GPU, and print a short summary; logs go to a folder.

    python benchmarks/gpu_suite.py --output logs [--only tests,examples,sanitizer,bench]

Runs in place, installed or not, and needs no network. The exit code is 1 if anything failed; what
a machine lacks (compute-sanitizer, pytest-xdist, PyTorch) is said, and is no failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("tests", "examples", "sanitizer", "bench")
TOOLS = ("memcheck", "racecheck")
TOGETHER = 3  # sanitizers at a time
LIMIT = 400  # seconds of one step


@dataclass(frozen=True)
class Outcome:
    """How one step ended: ``text`` is the line that sums it up."""

    name: str
    text: str
    seconds: float
    failed: bool

    def __str__(self) -> str:
        mark = "FAILED" if self.failed else "ok"
        return f"{mark:<7} {self.name:<28} {self.seconds:6.1f} s  {self.text}"


@dataclass(frozen=True)
class Runner:
    """Runs commands with ``env`` and leaves their output in ``logs``."""

    env: dict[str, str]
    logs: Path

    def run(self, name: str, command: Iterable[str], summary: str) -> Outcome:
        """One command; its last line that matches ``summary`` sums it up."""
        start = time.perf_counter()
        path = self.logs / f"{name.replace(' ', '-')}.log"
        with path.open("w", encoding="utf-8") as log:
            code = _exit_code(tuple(command), self.env, log)
        lines = [line.strip("= ") for line in path.read_text("utf-8").splitlines() if line.strip()]
        found = [line for line in lines if re.search(summary, line)] or lines[-1:]
        text = found[-1] if found else "no output"
        if code != 0:
            text = f"{'stopped' if code is None else f'exit code {code}'}; {text}"
        return Outcome(name, text, time.perf_counter() - start, code != 0)


def _exit_code(command: tuple[str, ...], env: dict[str, str], log: IO[str]) -> int | None:
    """The exit code of ``command``; None where it ran past the limit and was stopped."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def environment(folder: Path) -> dict[str, str]:
    """The environment of children, in which ``import kgen`` means this checkout."""
    (folder / "kgen").symlink_to(ROOT, target_is_directory=True)
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "KGEN_CACHE_DIR": str(folder / "cache"),
    }


def tests(runner: Runner, workers: int) -> Iterator[Outcome]:
    """The GPU tests in several processes; by themselves those of ranks that poll one another, which
    other work would starve, and what measures time."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    spread = ("-n", str(workers)) if importlib.util.find_spec("xdist") else ()
    counted = r"\d+ (passed|failed|skipped|error)"
    chosen, ranks = ("-m", "gpu and not bench"), "tests/gpu/test_dcp.py"
    yield runner.run(
        "pytest gpu", (*pytest, "tests/gpu", "--ignore", ranks, *chosen, *spread), counted
    )
    yield runner.run("pytest gpu dcp", (*pytest, ranks, *chosen), counted)
    yield runner.run(
        "pytest gpu bench", (*pytest, "tests/gpu", "-s", "-m", "gpu and bench"), counted
    )


def examples(runner: Runner) -> Iterator[Outcome]:
    """Every example, with PyTorch."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        if importlib.util.find_spec("torch"):
            yield runner.run(f"example {path.stem}", (sys.executable, str(path)), r"^error")
        else:
            yield Outcome(f"example {path.stem}", "not run: no PyTorch", 0, False)


def sanitizer(runner: Runner) -> Iterator[Outcome]:
    """memcheck and racecheck of the query's schedules in all forms, and of the other families."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        yield Outcome("sanitizer", "not run: no compute-sanitizer on the path", 0, False)
        return
    script = (sys.executable, "benchmarks/launch_once.py")
    listed = subprocess.run(script, cwd=ROOT, env=runner.env, text=True, stderr=subprocess.PIPE)
    names = listed.stderr.partition("name a schedule: ")[2].strip().split(", ")
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from pool.map(
            lambda job: runner.run(
                f"{job[0]} {job[1]}",
                (tool, "--tool", job[0], "--error-exitcode", "9", *script, job[1]),
                r"SUMMARY",
            ),
            [(check, name) for check in TOOLS for name in names],
        )


def benchmarks(runner: Runner) -> Iterator[Outcome]:
    """All times; performance-report.log and value_bmm.log are the Markdown."""
    command = (sys.executable, "benchmarks/performance.py")
    yield runner.run("performance report", command, r"^\| `kgen --help`")
    ranks = (sys.executable, "benchmarks/dcp.py")
    yield runner.run("dcp", ranks, r"^\| \d+x\d+ \|")
    peers = (sys.executable, "benchmarks/peers.py")  # times where there are two GPUs
    yield runner.run("peers", peers, r"steps right$|^\| \d+x\d+ \|")
    ways = (sys.executable, "benchmarks/value_bmm.py")
    yield runner.run("value_bmm", ways, r"^\| \d+x\d+ \|")


def main() -> None:
    """Run the chosen steps one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder of the logs [default: a temporary one]")
    parser.add_argument("--only", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--workers", type=int, default=4, help="processes of pytest")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(STEPS):
        parser.error(f"--only: got {', '.join(unknown)}; allowed are {', '.join(STEPS)}")
    logs = args.output or Path(tempfile.mkdtemp(prefix="kgen-gpu-"))
    logs.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(environment(Path(folder)), logs)
        made = {
            "tests": lambda: tests(runner, args.workers),
            "examples": lambda: examples(runner),
            "sanitizer": lambda: sanitizer(runner),
            "bench": lambda: benchmarks(runner),
        }
        for step in chosen:
            for outcome in made[step]():
                print(outcome, flush=True)
                outcomes.append(outcome)
    print(f"logs: {logs}")
    sys.exit(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    main()
