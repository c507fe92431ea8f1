"""Layers under decode context parallelism on the CPU, step after step, on all ranks at once.

    python benchmarks/ranks_cpu.py                  # 2 and 4 ranks, both transports, 10 seeds
    python benchmarks/ranks_cpu.py --slug query-h1-b3-dcp2 --seed 7 --seeds 1

A step is the query, an attention that stands in, and dcp_value, of other inputs each time; the
mailboxes of both parities take turns, and only the kernels refill them. Prints each failure, with
what repeats it, and a line for each configuration; exits 1 if there was a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

from kgen.codegen import schema
from kgen.codegen.compiler import jobs
from kgen.codegen.errors import KgenError
from kgen.codegen.verify import ranks

RANKS, TRANSPORTS = (2, 4), ("unicast", "multicast")
FORMS: tuple[dict[str, Any], ...] = ({}, {"dsa": True, "q_heads": 12}, {"poll": False})


@dataclass(frozen=True)
class Result:
    """All steps of one seed: what was wrong, if anything."""

    slug: str
    seed: int
    trouble: str
    seconds: float


def slugs() -> Iterator[str]:
    """Every number of ranks, transport and form."""
    for dcp, transport, form in product(RANKS, TRANSPORTS, FORMS):
        fields = {"heads": 1, "batch": 3, "dcp": dcp, "transport": transport}
        yield schema.make("query", fields | form).slug


def run(slug: str, steps: int, seed: int) -> Result:
    """All steps of one seed."""
    start, config = time.monotonic(), schema.parse_slug(slug)
    assert isinstance(config, schema.Query)
    try:
        verdicts = ranks.layers(config, steps, seed)
        wrong = [f"{name}: {v}" for name, v in verdicts.items() if not v.right]
    except KgenError as error:
        wrong = [str(error)]
    return Result(slug, seed, "; ".join(wrong), time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slug", action="append", help="of a query with dcp; may be repeated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=jobs.cores())
    given = parser.parse_args()
    chosen = given.slug or list(slugs())
    results = list(_results(given, chosen))
    for slug in chosen:
        mine = [result for result in results if result.slug == slug]
        failed, seconds = sum(bool(r.trouble) for r in mine), sum(r.seconds for r in mine)
        text = f"{given.steps} steps, {failed} of {len(mine)} seeds failed, {seconds:.0f} s"
        print(f"{slug}: {text}")
    failed = sum(bool(result.trouble) for result in results)
    steps = len(results) * given.steps
    print(f"{steps} steps on every rank, {failed} of {len(results)} runs failed")
    sys.exit(bool(failed))


def _results(given: argparse.Namespace, chosen: list[str]) -> Iterator[Result]:
    """Results as they come; failures are printed at once."""
    seeds = range(given.seed, given.seed + given.seeds)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(run, slug, given.steps, seed) for seed, slug in product(seeds, chosen)]
        for result in (future.result() for future in as_completed(runs)):
            if result.trouble:
                again = f"--slug {result.slug} --seed {result.seed} --seeds 1 --steps {given.steps}"
                print(f"FAILED {result.slug}, seed {result.seed}: {result.trouble}")
                print(f"again: python {sys.argv[0]} {again}", flush=True)
            yield result


if __name__ == "__main__":
    main()
