"""Compare the machine code of two checkouts' kernels: for changes that should not change any.

    python benchmarks/same_code.py BEFORE AFTER [SLUG]... [--arch ARCH]... [--folder FOLDER]

BEFORE and AFTER are ``kgen`` executables, each of its own environment. Builds every kernel (the
canonical set by default) with both, into caches in FOLDER, which may be kept for the next call;
compares the code sections of the cubins byte for byte, and prints those that differ with what they
take before and after. "order" says that the same instructions, by name, are there as often. Exits 1
where a kernel differs, 2 where one takes more registers, spills more or was not built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kgen.codegen.compiler import goldens
from kgen.codegen.compiler.cubin import sections
from kgen.codegen.inspection.disasm import disassemble, sass_tally
from kgen.codegen.tables import aligned

ARCHS = ("sm_90a", "sm_100a", "sm_103a")
HEADER = ("kernel", "arch", "code", "registers", "spilled", "instructions", "bytes")


@dataclass(frozen=True)
class Built:
    """A kernel of one checkout."""

    image: bytes
    resources: dict[str, int]

    @property
    def code(self) -> bytes:
        """The bytes of its instructions."""
        places = [(a, a + n) for name, a, n in sections(self.image) if name.startswith(".text.")]
        return b"".join(self.image[start:end] for start, end in places)

    @property
    def spilled(self) -> int:
        """Bytes of spills and of local memory."""
        names = ("local_bytes", "spill_stores", "spill_loads")
        return sum(self.resources[name] for name in names)


@dataclass(frozen=True)
class Pair:
    """One kernel of both checkouts, whose code differs."""

    slug: str
    arch: str
    before: Built
    after: Built

    @property
    def worse(self) -> bool:
        """Whether it takes more now."""
        registers = self.after.resources["registers"] > self.before.resources["registers"]
        return registers or self.after.spilled > self.before.spilled

    def row(self) -> tuple[str, ...]:
        """Its line in the table."""
        before, after = self.before, self.after
        counts = [sass_tally(disassemble(built.image)) for built in (before, after)]
        found = [built.resources for built in (before, after)]
        return (
            self.slug,
            self.arch,
            "order" if counts[0] == counts[1] else "differs",
            change(*(resources["registers"] for resources in found)),
            change(before.spilled, after.spilled),
            change(*(count.total() for count in counts)),
            change(*(resources["code_bytes"] for resources in found)),
        )


def change(before: int, after: int) -> str:
    """One number, or two where they differ."""
    return f"{before}" if before == after else f"{before} -> {after}"


def build(kgen: str, slugs: Sequence[str], archs: Sequence[str], cache: Path) -> dict[Any, Built]:
    """What ``kgen`` makes of ``slugs``, by slug and target."""
    command = [kgen, "build", "--json", *slugs, *(f"--arch={arch}" for arch in archs)]
    env = os.environ | {"KGEN_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    kernels = json.loads(done.stdout)["kernels"] if done.stdout else []
    return {
        (kernel["slug"], kernel["arch"]): Built(
            Path(kernel["path"]).read_bytes(), kernel["resources"]
        )
        for kernel in kernels
    }


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Build, compare and print; the exit status."""
    slugs, archs = options.slugs or goldens.SLUGS, options.arch or ARCHS
    before = build(options.before, slugs, archs, folder / "before")
    after = build(options.after, slugs, archs, folder / "after")
    wanted = list(product(slugs, archs))
    missing = [names for names in wanted if names not in before or names not in after]
    pairs = [Pair(*n, before[n], after[n]) for n in wanted if n not in missing]
    differ = [pair for pair in pairs if pair.before.code != pair.after.code]
    worse = sum(pair.worse for pair in differ)
    if differ:
        print(aligned([HEADER, *(pair.row() for pair in differ)]))
    print(f"{len(pairs)} kernels: {len(pairs) - len(differ)} the same, {worse} worse")
    for names in missing:
        print("not built by both:", *names)
    return 2 if missing or worse else bool(differ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("slugs", nargs="*", metavar="SLUG")
    parser.add_argument("--arch", action="append")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.folder:
        return compare(options, options.folder)
    with tempfile.TemporaryDirectory() as folder:
        return compare(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
