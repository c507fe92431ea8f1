"""Random legal configurations of the families of one rank, run with fresh inputs and judged.

    python benchmarks/verify_many.py --count 1000            # on the GPU here
    python benchmarks/verify_many.py --count 1000 --seed 7   # exactly these again
    python benchmarks/verify_many.py --count 40 --cpu        # on a CPU, small ones

Batches are small more often than not. Prints each kernel that is wrong or fails, and a summary;
exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from kgen.codegen import api, build, schema
from kgen.codegen.compiler.jobs import job_count
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import plan
from kgen.codegen.schema import Config, combinations
from kgen.codegen.tables import markdown
from kgen.codegen.verify import runs
from kgen.codegen.verify.judge import Verdict, joined
from kgen.codegen.verify.outcome import Outcome
from kgen.codegen.verify.workers import Worker

# How often each family is drawn.
FAMILIES = {"query": 8, "index_front": 3, "value": 3, "gate": 1, "query_norm": 1}
RANKED = ("dcp", "transport", "q_heads", "watchdog")  # fields of kernels of several ranks
LARGEST = {False: {"heads": 128, "batch": 256}, True: {"heads": 2, "batch": 20}}  # on a CPU: small
EVERY = 10.0  # seconds between two lines about how far it is


def draw(rng: np.random.Generator, arch: str, small: bool) -> Config:
    """A configuration that ``arch`` can have."""
    odds = np.array([*FAMILIES.values()], float)
    while True:
        kernel = str(rng.choice([*FAMILIES], p=odds / odds.sum()))
        try:
            config = schema.make(kernel, _fields(kernel, rng, LARGEST[small]))
            plan(config, arch)
        except ConfigError:
            continue  # refused by a rule or by its plan
        return config


def _fields(kernel: str, rng: np.random.Generator, largest: dict[str, int]) -> dict[str, Any]:
    switches = _switches(kernel)
    fields: dict[str, Any] = dict(switches[int(rng.integers(len(switches)))])
    for option in schema.options(schema.KERNELS[kernel]):
        if option.name in RANKED:
            continue
        if option.name in largest:
            power = 2 if option.name == "batch" else 1  # the square makes small ones frequent
            fields[option.name] = round(largest[option.name] ** (rng.random() ** power))
        elif option.choices and rng.random() < 0.5:
            fields[option.name] = str(rng.choice(option.choices))
        elif option.name == "q":
            divisors = [n for n in range(1, fields["batch"] + 1) if fields["batch"] % n == 0]
            fields["q"] = int(rng.choice(divisors))
    return fields


@cache
def _switches(kernel: str) -> list[dict[str, bool]]:
    """The legal combinations of a family's switches."""
    return [found.fields for found in combinations.legal(schema.KERNELS[kernel])]


def distinct(seed: int, count: int, arch: str, small: bool) -> tuple[Config, ...]:
    """``count`` configurations, each once."""
    rng, found = np.random.default_rng(seed), dict[Config, None]()
    while len(found) < count:
        found[draw(rng, arch, small)] = None
    return tuple(found)


def summary(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """A row for each output of each family."""
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    for outcome in outcomes:
        for name, verdict in outcome.verdicts.items():
            family = outcome.slug.partition("-")[0]
            found.setdefault((family, name, verdict.allowed), []).append(verdict)
    for (family, name, allowed), verdicts in sorted(found.items()):
        whole = joined(verdicts)
        yield (
            *(family, name, allowed, f"{len(verdicts)}", f"{whole.count:,}"),
            *(f"{whole.share_exact:.5%}", f"{whole.largest_step}", f"{whole.by_share:,}"),
            *(f"{whole.worst_share:.2%}", f"{whole.moved:,}", f"{whole.farthest}"),
            f"{whole.wrong:,}",
        )


HEADER = (
    *("family", "output", "allowed", "kernels", "values", "exact", "largest step"),
    *("by share", "worst share", "by a neighbour", "farthest", "wrong"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="configurations")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--seeds", type=int, default=1, help="of inputs, for each configuration")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU")
    parser.add_argument("--jobs", type=int, help="processes [default: all cores]")
    given = parser.parse_args()
    start, jobs = time.monotonic(), job_count(given.jobs)
    arch = api.default_arch()
    configs = distinct(given.seed, given.count, arch, small=given.cpu)
    codes = {plan(config, arch).code for config in configs}
    print(f"seed {given.seed}: {len(configs)} kernels of {len(codes)} cubins for {arch}")
    if not given.cpu:
        build.build_many(configs, [arch], jobs=jobs)
        print(f"built after {time.monotonic() - start:.0f} s", flush=True)
    setup = runs.Setup(arch, given.cpu, given.seed, given.seeds, jobs)
    outcomes = list(_told(configs, setup))
    print(markdown(HEADER, summary(outcomes)))
    bad = [outcome for outcome in outcomes if not outcome.right]
    seconds = time.monotonic() - start
    print(f"{len(outcomes)} kernels, {len(bad)} not right, {seconds:.0f} s in {jobs} processes")
    sys.exit(bool(bad))


def _told(configs: Sequence[Config], setup: runs.Setup) -> Iterator[Outcome]:
    """Outcomes as they come; those that are not right are printed at once."""
    setup.require()
    last = time.monotonic()

    def tell(over: int, total: int, workers: Sequence[Worker[Any, Any]]) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"{over} of {total}", file=sys.stderr, flush=True)

    for outcome in runs.outcomes(configs, setup, tell):
        if not outcome.right:
            where = " --cpu" * setup.on_cpu
            print(outcome.text())
            print(f"again: kgen verify {outcome.slug}{where} --seed {setup.seed}", flush=True)
        yield outcome


if __name__ == "__main__":
    main()
