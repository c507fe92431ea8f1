"""Random legal configurations run on the CPU, each with random inputs and a random schedule.

    python benchmarks/fuzz_cpu.py --seconds 360
    python benchmarks/fuzz_cpu.py --seed 7 --count 500     # overnight: exactly these again

Prints a line for each failure, with what repeats it, and a summary; exits 1 if there was one. The
number of a configuration and the seed decide everything.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from math import ceil
from multiprocessing import get_context
from typing import Any

import numpy as np

from kgen.codegen import machine, schema, verify_cpu
from kgen.codegen.blueprint import Schedule
from kgen.codegen.config import Config, Option
from kgen.codegen.emulation import emulate
from kgen.codegen.errors import ConfigError, KgenError
from kgen.codegen.expected import FAMILIES
from kgen.codegen.plan_front import TILE, VARIANTS
from kgen.codegen.plan_query import KPAIR, KSPLIT, ROWS

WEIGHTS = {"query": 8, "index_front": 4, "value": 3, "gate": 1, "query_norm": 1}
ROWS_OF = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40)
SKIPPED = ("dcp", "poll", "transport", "q_heads")  # several ranks: tests/test_dcp.py


@dataclass(frozen=True)
class Result:
    """One configuration: what was wrong with it, if anything."""

    number: int
    kernel: str
    label: str
    trouble: str
    seconds: float


def draw(rng: np.random.Generator) -> tuple[Config, Schedule | None]:
    """A legal configuration with a small batch, and a schedule or None for the plan's."""
    names = [name for name in WEIGHTS if name in FAMILIES]
    weights = np.array([WEIGHTS[name] for name in names], float)
    kernel = str(rng.choice(names, p=weights / weights.sum()))
    model = schema.KERNELS[kernel]
    options = [option for option in schema.options(model) if option.name not in SKIPPED]
    fields: dict[str, Any] = {o.name: _value(o, rng) for o in options if o.required}
    for option in rng.permutation(np.array(options, object)):
        value = _value(option, rng)
        if not option.required and _legal(kernel, fields | {option.name: value}):
            fields[option.name] = value
    config = schema.make(kernel, fields)
    return config, _schedule(config, rng)


def _value(option: Option, rng: np.random.Generator) -> Any:
    if option.choices:
        return str(rng.choice(option.choices))
    if option.type is bool:
        return bool(rng.random() < 0.5)
    if option.name == "batch":
        return int(rng.choice(ROWS_OF))
    return int(rng.integers(1, 4))


def _legal(kernel: str, fields: dict[str, Any]) -> bool:
    try:
        schema.make(kernel, fields)
    except ConfigError:
        return False
    return True


def _schedule(config: Config, rng: np.random.Generator) -> Schedule | None:
    if rng.random() < 0.4:
        return None
    if isinstance(config, schema.Query) and config.scheme == "auto":
        cut = (ROWS, KPAIR, KSPLIT)[int(rng.integers(3))]
        return ROWS if config.q_b_cp_async else cut
    if isinstance(config, schema.IndexFront):
        variant = VARIANTS[scheme := str(rng.choice(list(VARIANTS)))]
        steps = int(rng.integers(1, min(TILE, ceil(config.batch / variant.step) * 8) + 1))
        tokens = min(TILE, ceil(steps / variant.step) * variant.step)
        return Schedule(scheme, tokens, variant.k_splits)
    return None


def run(seed: int, number: int) -> Result:
    """Configuration ``number`` of ``seed``."""
    rng, start = np.random.default_rng((seed, number)), time.monotonic()
    config, schedule = draw(rng)
    label = f"{config.slug} {schedule or ''}".strip()
    try:
        made = emulate(config, schedule=schedule)
        _, verdicts = verify_cpu.trial(made, int(rng.integers(1 << 32)))
        wrong = [f"{name}: {v}" for name, v in verdicts.items() if not v.right]
    except ConfigError as error:
        label, wrong = f"refused: {error}", []
    except KgenError as error:
        wrong = [str(error)]
    return Result(number, config.kernel, label, "; ".join(wrong), time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=360.0, help="start none after that long")
    parser.add_argument("--count", type=int, default=1 << 30, help="configurations at most")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--jobs", type=int, default=machine.cores())
    given = parser.parse_args()
    results = list(_results(given))
    failed = [result for result in results if result.trouble]
    kinds = Counter(r.kernel for r in results if not r.label.startswith("refused"))
    refused = sum(r.label.startswith("refused") for r in results)
    print(f"seed {given.seed}: {len(results)} configurations, {refused} refused by their plans")
    print(", ".join(f"{kernel} {number}" for kernel, number in sorted(kinds.items())))
    print(f"{len(failed)} failed; {sum(r.seconds for r in results):.0f} s of runs")
    sys.exit(bool(failed))


def _results(given: argparse.Namespace) -> Any:
    """Results as they come, ``jobs`` at a time; failures are printed at once."""
    end, numbers = time.monotonic() + given.seconds, count()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result]] = set()
        while True:
            while len(running) < given.jobs and time.monotonic() < end:
                if (number := next(numbers)) >= given.count:
                    break
                running.add(pool.submit(run, given.seed, number))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for result in (future.result() for future in done):
                if result.trouble:
                    print(f"FAILED {result.number}: {result.label}\n{result.trouble}", flush=True)
                yield result


if __name__ == "__main__":
    main()
