"""Measure everything that docs/performance.md records, and print it as Markdown.

    python benchmarks/performance.py > performance.md

Without a GPU only compile times and command times are measured, and the rest says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kgen
from kgen.codegen import api, schema, tables, targets
from kgen.codegen.bench import timing, uncached
from kgen.codegen.bench.timing import Report, Timing
from kgen.codegen.compiler import jobs, nvrtc
from kgen.codegen.compiler.render import render
from kgen.codegen.errors import DeviceError
from kgen.codegen.plan import plan
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel


@dataclass(frozen=True)
class Target:
    """What a shape is held to: microseconds a step of the original kernels and of hand-written
    prototypes, by the method of docs/performance.md ("Steps on the GPU")."""

    heads: int
    batch: int
    original: float
    prototype: float

    @property
    def slug(self) -> str:
        return f"query-h{self.heads}-b{self.batch}"

    @property
    def limit(self) -> float:
        """No slower than the prototype plus 10%, and than the original plus 5%."""
        return min(1.10 * self.prototype, 1.05 * self.original)


TARGETS = (
    Target(8, 1, 3.34, 2.99),
    Target(8, 2, 4.30, 2.98),
    Target(8, 8, 6.39, 3.28),
    Target(8, 16, 6.53, 3.92),
    Target(8, 32, 8.77, 5.76),
    Target(8, 64, 13.42, 8.79),
    Target(8, 128, 25.83, 16.88),
    Target(12, 1, 3.73, 3.89),
    Target(12, 8, 6.58, 3.94),
    Target(12, 16, 6.86, 4.27),
    Target(12, 64, 14.02, 10.5),
    Target(6, 1, 2.91, 2.86),
    Target(6, 8, 6.30, 2.82),
    Target(6, 64, 8.80, 6.0),
)
# The same of the original kernels of the other families.
OTHERS = {
    "value-h8-b1": 1.98,
    "value-h8-b16": 2.11,
    "value-h8-b64": 2.74,
    "value-h12-b1": 1.99,
    "value-h12-b16": 2.31,
    "value-h12-b64": 3.33,
    "index_front-b1": 6.86,
    "index_front-b8": 11.85,
    "index_front-b16": 13.38,
    "index_front-b32": 18.86,
}
GOAL = 1.5  # times the larger of floor and yardstick
BOUND_US, CHECKED_US = 5.0, 25.0
COMPILE_S = 1.2
COLD_S, WARM_S, HELP_S = 3.0, 0.7, 0.25


def verdict(measured: float, limit: float) -> str:
    """Whether ``measured`` keeps within ``limit``."""
    return "yes" if measured <= limit else f"no, {measured / limit - 1:+.1%}"


def steps(replays: int) -> Iterator[str]:
    """Microseconds a step of every shape, beside what they are held to."""
    configs = [schema.parse_slug(target.slug) for target in TARGETS]
    found = timing.run(configs, replays=replays)
    yield f"{found.machine}."
    yield (
        "Microseconds a step: weights cold (at least 24 sets in rotation, larger than the L2"
        " together), activations warm, programmatic launches chained in one CUDA graph, median of"
        f" {replays} replays. Yardstick, the shortest dependent path of a step, in the same run:"
        f" **{found.yardstick:.2f}**. Limit: the prototype plus 10% or the original plus 5%,"
        f" whichever is less. Goal: {GOAL} times the larger of floor and yardstick."
    )
    header = (
        *("shape", "schedule", "floor", "measured", "/ floor", "/ yardstick"),
        *("original", "prototype", "limit", "within", "goal"),
    )
    pairs = zip(TARGETS, found.timings, strict=True)
    yield tables.markdown(header, (step_row(*pair, found) for pair in pairs))


def step_row(target: Target, timed: Timing, found: Report) -> tuple[str, ...]:
    """One line of the table of :func:`steps`."""
    ratios = found.ratios(timed)
    goal = GOAL * max(timed.floor, found.yardstick)
    numbers = (timed.floor, timed.measured, *ratios, target.original, target.prototype)
    return (
        f"{target.heads}x{target.batch}",
        timed.schedule,
        *(f"{number:.2f}" for number in (*numbers, target.limit)),
        verdict(timed.measured, target.limit),
        f"{goal:.2f}",
    )


def others(replays: int) -> Iterator[str]:
    """The same of the other families; none may be slower than the original."""
    found = timing.run(map(schema.parse_slug, OTHERS), replays=replays)
    yield (
        f"By the same method; yardstick in this run: **{found.yardstick:.2f}**. The originals"
        f" took turns over {timing.SETS} weight sets, of value few enough for an L2; cold: more."
    )
    header = ("kernel", "schedule", "floor", "cold", "24 sets", "original", "within", "goal")
    rows = []
    for original, timed in zip(OTHERS.values(), found.timings, strict=True):
        alike, _ = timing.measure(api.kernel(schema.parse_slug(timed.slug)), replays, timing.SETS)
        rows.append(other_row(original, alike, timed, found.yardstick))
    yield tables.markdown(header, rows)


def other_row(original: float, alike: float, timed: Timing, unit: float) -> tuple[str, ...]:
    """One line of the table of :func:`others`; ``unit`` is the yardstick."""
    numbers = (timed.floor, timed.measured, alike, original)
    cells = (f"{number:.2f}" for number in numbers)
    goal = f"{GOAL * max(timed.floor, unit):.2f}"
    return (timed.slug, timed.schedule, *cells, verdict(alike, original), goal)


def launches() -> Iterator[str]:
    """CPU microseconds of a launch from Python, by caller."""
    yield (
        "CPU microseconds of one launch from Python (2 heads, 8 rows, all outputs given), median"
        " of 30 rounds of 200 launches."
    )
    kernel = kgen.query(heads=2, batch=8)
    rows = (row for name, arrays in callers(kernel) for row in launch_rows(kernel, name, arrays))
    yield tables.markdown(("arrays", "launch", "µs", "limit", "within"), rows)


def callers(kernel: Kernel) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same arguments as arrays of each library here."""
    arrays = timing.device_arrays(kernel.plan.params)
    yield "cupy", arrays
    try:
        import torch
    except ImportError:
        return
    signed = {n: a.view("i2") if a.dtype.name == "uint16" else a for n, a in arrays.items()}
    tensors = {name: torch.from_dlpack(array) for name, array in signed.items()}
    yield (
        "torch",
        {n: t.view(torch.bfloat16) if t.dtype == torch.int16 else t for n, t in tensors.items()},
    )


def launch_rows(kernel: Kernel, name: str, arrays: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Both ways of launching, timed."""
    kinds: tuple[tuple[str, Callable[[], Any], float], ...] = (
        ("bound", kernel.bind(**arrays), BOUND_US),
        ("checked", lambda: kernel(**arrays), CHECKED_US),
    )
    for kind, launch, limit in kinds:
        took = launch_time(launch)
        yield name, kind, f"{took:.2f}", f"{limit:.0f}", verdict(took, limit)


def launch_time(launch: Callable[[], Any], rounds: int = 30, count: int = 200) -> float:
    """Microseconds of ``launch``, in rounds short enough to never fill the queue."""
    import cupy

    times = []
    for _ in range(rounds):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(count):
            launch()
        times.append((time.perf_counter() - start) / count * 1e6)
    cupy.cuda.Device().synchronize()
    return statistics.median(times)


def compiles() -> Iterator[str]:
    """Seconds that NVRTC takes for every shape, and what it made."""
    name = targets.DEFAULT
    yield (
        f"Compile times for {name} with NVRTC {nvrtc.nvrtc_build()} on {cpu()}: best of 3, in"
        f" one process, nothing cached. Limit {COMPILE_S} s for the largest."
    )
    header = ("kernel", "schedule", "seconds", "registers", "shared memory", "cubin bytes")
    slugs = (*(target.slug for target in TARGETS), *OTHERS)
    rows = [compile_row(slug, name) for slug in slugs]
    longest = max(float(row[2]) for row in rows)
    yield tables.markdown(header, rows)
    yield f"Longest {longest:.3f} s; within the limit: {verdict(longest, COMPILE_S)}."


def compile_row(slug: str, name: str) -> tuple[str, ...]:
    """One kernel of the table of :func:`compiles`."""
    planned = plan(schema.parse_slug(slug), name)
    cubins = [nvrtc.compile(render(planned), name) for _ in range(3)]
    best = min(cubins, key=lambda cubin: cubin.seconds)
    return (
        slug,
        uncached.name(planned.schedule),
        f"{best.seconds:.3f}",
        str(best.resources.registers),
        f"{planned.smem_bytes:,}",
        f"{len(best.image):,}",
    )


def cpu() -> str:
    """The processor and the cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'an unnamed CPU'}, {jobs.cores()} cores"


def commands() -> Iterator[str]:
    """Wall seconds of the command line."""
    yield "Wall seconds of commands, Python's start included: median of 5."
    build = ("build", "--kernel", "query", "--heads", "8", "--batch", "64")
    line = " ".join(("kgen", *build))
    with tempfile.TemporaryDirectory() as folder:
        cold = median_seconds(build, [f"{folder}/{number}" for number in range(5)])
        warm = median_seconds(build, [f"{folder}/0"] * 5)
        shown = median_seconds(("--help",), [folder] * 5)
    rows = (
        (f"`{line}`, cold", cold, COLD_S),
        (f"`{line}`, warm", warm, WARM_S),
        ("`kgen --help`", shown, HELP_S),
    )
    yield tables.markdown(
        ("command", "seconds", "limit", "within"),
        ((name, f"{took:.3f}", str(limit), verdict(took, limit)) for name, took, limit in rows),
    )


def median_seconds(args: Sequence[str], caches: Sequence[str]) -> float:
    """The median wall time of a command, once for each cache folder."""
    return statistics.median([wall_seconds(args, cache) for cache in caches])


def wall_seconds(args: Sequence[str], cache: str) -> float:
    """The wall time of one command, in a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KGEN_")}
    env["KGEN_CACHE_DIR"] = cache
    start = time.perf_counter()
    command = (sys.executable, "-m", "kgen.cli", *args)
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - start


def main() -> None:
    """Print every section; those that need a GPU say so where there is none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replays", type=int, default=30)
    replays = parser.parse_args().replays
    sections: tuple[tuple[str, bool, Callable[[], Iterator[str]]], ...] = (
        ("Steps on the GPU", True, lambda: steps(replays)),
        ("Steps of the other families", True, lambda: others(replays)),
        ("CPU time of a launch", True, launches),
        ("Compile times", False, compiles),
        ("Commands", False, commands),
    )
    for title, needs_gpu, section in sections:
        print(f"## {title}\n", flush=True)
        try:
            if needs_gpu:
                nvml.require()
            for part in section():
                print(f"{part}\n", flush=True)
        except DeviceError as error:
            print(f"Not measured: {error}.\n", flush=True)


if __name__ == "__main__":
    main()
