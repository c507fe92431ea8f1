"""Package 200 kernels: build time, size of the wheel, and how fast a kernel of it is found.

    python benchmarks/package_size.py [--jobs N]

Compiles into a folder of its own, twice, and exits 1 unless both wheels have the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kgen.codegen import build, schema
from kgen.codegen.aot import wheel
from kgen.codegen.cache import installed
from kgen.codegen.cache.keys import Request
from kgen.codegen.schema.matrix import expand

ARCHS = ("sm_90a", "sm_100a")
FAMILIES: dict[str, dict[str, Any]] = {
    "query": {"heads": "6,8,12,16", "batch": "1,2,4,8,16,32,64,128", "dsa": [False, True]},
    "value": {"heads": "8,16", "batch": "1,2,4,8,16,32,64,128"},
    "index_front": {"batch": "1,2,4,8,16,32,64,128", "fp4": [False, True]},
    "query_norm": {"batch": "1,8,64,128"},
}


def configs() -> list[schema.Config]:
    """100 kernels for each target."""
    return [config for kernel, given in FAMILIES.items() for config in expand(kernel, given)]


def built_wheel(jobs: int | None, folder: Path) -> tuple[Path, float, float]:
    """The wheel from a cold cache, and the seconds of building and of packaging."""
    os.environ["KGEN_CACHE_DIR"] = str(folder / "cache")
    start = time.perf_counter()
    results = build.build_many(configs(), ARCHS, jobs, packaged=False)
    built = time.perf_counter()
    made = [result.artifact for result in results if result.artifact]
    assert len(made) == len(results) == 200, [str(r.error) for r in results if r.error]
    label = wheel.Label(version=installed.versions()["kgen"])
    path = folder / label.file
    path.write_bytes(wheel.wheel(made, label))
    return path, built - start, time.perf_counter() - built


def look_ups(path: Path, site: Path) -> tuple[float, float]:
    """Milliseconds of the first look-up in a process, and of a later one (the median)."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    subprocess.run((*pip, "--target", str(site), str(path)), check=True)
    sys.path.insert(0, str(site))
    times = []
    for config in configs():
        request = Request.of(config, ARCHS[0])
        start = time.perf_counter()
        assert installed.find(request), config.slug
        times.append((time.perf_counter() - start) * 1e3)
    return times[0], sorted(times)[len(times) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        (first, built, packed), (second, *_) = (built_wheel(jobs, folder) for folder in folders)
        data = first.read_bytes()
        same = data == second.read_bytes()
        cold, warm = look_ups(first, Path(name) / "site")
    print(f"200 kernels built in {built:.1f} s with {build.job_count(jobs)} jobs")
    print(f"packaged in {packed:.2f} s: {len(data):,} bytes, {len(gzip.compress(data)):,} in gzip")
    print(f"two cold builds: {'the same bytes' if same else 'DIFFERENT BYTES'}")
    print(f"look-up: {cold:.1f} ms at first (entry points, manifest), then {warm:.2f} ms")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
