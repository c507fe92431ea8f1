"""Random legal configurations run on the CPU, each with random inputs and a random schedule.

    python benchmarks/fuzz_cpu.py --seconds 360
    python benchmarks/fuzz_cpu.py --seed 7 --count 500     # overnight: exactly these again
    python benchmarks/fuzz_cpu.py --seed 7 --number 12     # one of them

Kernels of several ranks run on all ranks at once. Prints each failure, with what repeats it, and a
summary; exits 1 if there was one. The number of a configuration and the seed decide everything.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from math import ceil
from multiprocessing import get_context
from typing import Any

import numpy as np

from kgen.codegen import schema
from kgen.codegen.compiler import jobs
from kgen.codegen.errors import ConfigError, KgenError
from kgen.codegen.plan import Plan, Schedule, plan
from kgen.codegen.plan.index_front import TILE, VARIANTS, schedule_of
from kgen.codegen.plan.schedules import FOLDED, KPAIR, KSPLIT, ROWS, WGMMA16, WGMMA32, WGMMA64
from kgen.codegen.schema import Config, Option
from kgen.codegen.verify import cpu

# Kinds of configurations: the family, the fields that it always has, and how often it is drawn.
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "query": ("query", {"dcp": 0}, 8),
    "query with dcp": ("query", {"poll": True}, 4),
    "query, query_wait": ("query", {"poll": False}, 2),
    "dcp_value": ("dcp_value", {}, 2),
    "index_front": ("index_front", {}, 4),
    "value": ("value", {}, 3),
    "gate": ("gate", {}, 1),
    "query_norm": ("query_norm", {}, 1),
}
NUMBERS: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40),
    "dcp": (2, 4),
    "q_heads": (0, 0, 8, 12),
    "watchdog": (0, 0, 50),
}
OTHERS = (1, 2, 3)  # of every other number
CUTS = {
    "auto": (ROWS, KPAIR, KSPLIT),
    "folded": (FOLDED,),
    "rows": (ROWS,),
    "ksplit": (KPAIR, KSPLIT),
    "wgmma": (WGMMA16, WGMMA32, WGMMA64),
}
LARGEST = 40  # ranks * heads * batch


@dataclass(frozen=True)
class Result:
    """One configuration: what was wrong with it, if anything."""

    number: int
    kind: str
    label: str
    trouble: str
    seconds: float


def draw(rng: np.random.Generator) -> tuple[str, Plan]:
    """A kind, and the plan of a legal configuration with a small batch, often of a schedule that
    is not the target's."""
    odds = np.array([often for *_, often in KINDS.values()], float)
    kind = str(rng.choice(list(KINDS), p=odds / odds.sum()))
    while True:
        config = _config(kind, rng)
        schedule = _schedule(config, rng)
        if _size(config) <= LARGEST:
            try:
                return kind, plan(config, schedule=schedule)
            except ConfigError:
                continue  # refused by its plan


def _config(kind: str, rng: np.random.Generator) -> Config:
    kernel, fixed, _ = KINDS[kind]
    options = schema.options(schema.KERNELS[kernel])
    always = [option for option in options if option.required or option.name == "dcp"]
    fields = {option.name: _value(option, rng) for option in always} | fixed
    for option in rng.permutation(np.array(options, object)):
        value = _value(option, rng)
        if option.name not in fields and _legal(kernel, fields | {option.name: value}):
            fields[option.name] = value
    return schema.make(kernel, fields)


def _value(option: Option, rng: np.random.Generator) -> Any:
    if option.choices:
        return str(rng.choice(option.choices))
    if option.type is bool:
        return bool(rng.random() < 0.5)
    return int(rng.choice(NUMBERS.get(option.name, OTHERS)))


def _size(config: Any) -> int:
    """What all ranks together have; they run at once."""
    ranks = int(getattr(config, "dcp", 0))
    return ranks and ranks * int(config.heads * config.batch)


def _legal(kernel: str, fields: dict[str, Any]) -> bool:
    return isinstance(schema.attempt(kernel, fields), Config)


def _schedule(config: Config, rng: np.random.Generator) -> Schedule | None:
    if rng.random() < 0.4:
        return None
    if isinstance(config, schema.Query):
        cuts = CUTS["rows" if config.q_b_cp_async else config.scheme]
        return cuts[int(rng.integers(len(cuts)))]
    if isinstance(config, schema.IndexFront):
        variant = VARIANTS[scheme := str(rng.choice(list(VARIANTS)))]
        steps = int(rng.integers(1, min(TILE, ceil(config.batch / variant.step) * 8) + 1))
        return schedule_of(scheme, steps)
    return None


def run(seed: int, number: int) -> Result:
    """Configuration ``number`` of ``seed``."""
    rng, start = np.random.default_rng((seed, number)), time.monotonic()
    kind, made = draw(rng)
    try:
        verdicts = cpu.trial(cpu.emulate(made), int(rng.integers(1 << 32))).verdicts
        wrong = [f"{name}: {v}" for name, v in verdicts.items() if not v.right]
    except KgenError as error:
        wrong = [str(error).partition("\n  again:")[0]]
    label = f"{made.config.slug} {made.schedule}"
    return Result(number, kind, label, "; ".join(wrong), time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=360.0, help="start none after that long")
    parser.add_argument("--count", type=int, default=1 << 30, help="configurations at most")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--number", type=int, help="run this configuration only")
    parser.add_argument("--jobs", type=int, default=jobs.cores())
    given = parser.parse_args()
    numbers = range(given.count) if given.number is None else range(given.number, given.number + 1)
    results = list(_results(given, iter(numbers)))
    failed = [result for result in results if result.trouble]
    kinds = Counter(result.kind for result in results)
    print(f"seed {given.seed}: {len(results)} configurations")
    print("; ".join(f"{kind}: {kinds[kind]}" for kind in KINDS))
    print(f"{len(failed)} failed; {sum(r.seconds for r in results):.0f} s of runs")
    sys.exit(bool(failed))


def _results(given: argparse.Namespace, numbers: Iterator[int]) -> Iterator[Result]:
    """Results as they come, ``jobs`` at a time; failures are printed at once."""
    end, again = time.monotonic() + given.seconds, f"{sys.argv[0]} --seed {given.seed} --number"
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result]] = set()
        while True:
            while len(running) < given.jobs and time.monotonic() < end:
                if (number := next(numbers, None)) is None:
                    break
                running.add(pool.submit(run, given.seed, number))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for result in (future.result() for future in done):
                if result.trouble:
                    print(f"FAILED {result.number}: {result.label}\n{result.trouble}")
                    print(f"again: python {again} {result.number}", flush=True)
                yield result


if __name__ == "__main__":
    main()
