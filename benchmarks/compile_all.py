"""Compile every legal combination of the query's switches, for heads, batches and targets.

    python benchmarks/compile_all.py [--jobs N]

Builds into a folder of its own, prints what failed, spilled or took local memory, and the time;
exits 1 where there was any. tests/unit/schema/test_combinations.py
compiles a part of the same set.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product

from kgen.codegen import build, schema
from kgen.codegen.schema import combinations

HEADS = (6, 8, 12)
BATCHES = (1, 2, 5, 8, 16, 64)
ARCHS = ("sm_90a", "sm_100a", "sm_103a")


def configs() -> Iterator[schema.Config]:
    """Every combination; what only the rows scheme has is asked of that scheme."""
    for heads, batch in product(HEADS, BATCHES):
        for found in combinations.legal(schema.Query):
            scheme = "rows" if found.fields.get("q_b_cp_async") else "auto"
            fields = {"heads": heads, "batch": batch, "scheme": scheme, **found.fields}
            yield schema.make("query", fields)


def fault(result: build.Result) -> str | None:
    """What is wrong with a build, or None."""
    if result.artifact is None:
        return str(result.error)
    found = result.artifact.cubin.resources
    spilled = found.spill_stores, found.spill_loads, found.local_bytes
    return f"spills and local memory {spilled}" if any(spilled) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int)
    jobs = parser.parse_args().jobs
    faults: list[str] = []

    def tell(result: build.Result) -> None:
        if text := fault(result):
            faults.append(f"{result.config.slug} {result.arch}: {text}")
            print(faults[-1], flush=True)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KGEN_CACHE_DIR"] = folder
        results = build.build_many(configs(), ARCHS, jobs=jobs, on_done=tell)
    seconds = time.perf_counter() - start
    print(f"{len(results):,} kernels in {seconds:.0f} s, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
