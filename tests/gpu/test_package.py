"""Packaged kernels on a GPU: a decode step without compiling, the C example, and warm captures."""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.codegen.build import build
from kgen.codegen.errors import DeviceError
from kgen.codegen.runtime import driver, nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.schema import Query
from kgen.codegen.verify.samples import bf16

from ..helpers import packaged
from ..unit.aot.test_c_header import EXAMPLE, WARN, compile, include

pytestmark = pytest.mark.gpu

ROWS, HEADS, PAGES, PAGE, ROW, WIDTH = 8, 8, 4, 16, 576, 2112  # of examples/launch.cpp
SLUG = f"query-h{HEADS}-b{ROWS}"


def inputs() -> dict[str, Any]:
    """What examples/launch.cpp makes, in the order in which it draws its numbers."""
    state = 1

    def drawn(*shape: int) -> np.ndarray:
        nonlocal state
        values = np.empty(int(np.prod(shape)), np.uint16)
        for index in range(values.size):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            values[index] = state >> 31 << 15 | 0x3B80 + (state >> 16) % 0x400
        return values.reshape(shape)

    return {
        "qkv": drawn(ROWS, WIDTH),
        "w_qa": drawn(1536),
        "w_kva": drawn(512),
        "w_qb": drawn(HEADS * 192, 1536),
        "w_uk": drawn(HEADS, 128, 512),
        "cache": np.zeros((PAGES, PAGE, ROW), np.uint8),
        "slots": np.arange(ROWS, dtype=np.int64) * 7,
        "q_scale_inv": np.array([0.5], np.float32),
        "k_scale_inv": np.array([2.0], np.float32),
    }


def fnv(data: bytes) -> int:
    found = 14695981039346656037
    for byte in data:
        found = (found ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return found


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    cupy = pytest.importorskip("cupy")
    return {name: cupy.asarray(array) for name, array in inputs().items()}


@pytest.fixture(scope="module")
def expected(arrays: dict[str, Any]) -> int:
    """The hash of what the kernel writes, compiled here."""
    out = kgen.query(heads=HEADS, batch=ROWS)(**arrays)
    return fnv(out.get().tobytes())


STEP = """
import os, sys
from pathlib import Path
import cupy, kgen, numpy
here = Path(os.environ["HERE"])
for name in ("query", "value"):
    given = numpy.load(here / f"{name}.npz").items()
    kernel = getattr(kgen, name)(heads=8, batch=8)
    assert kernel.artifact.origin == "package", kernel.artifact
    out = kernel(**{key: cupy.asarray(array) for key, array in given})
    (here / name).write_bytes(out.get().tobytes())
assert "cuda.bindings.nvrtc" not in sys.modules
assert not (here / "cache").exists()
"""


def value_inputs() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "latent": bf16(rng, ROWS, HEADS, 512),
        "w_uv": bf16(rng, HEADS, 128, 512, scale=0.05),
        "gate": bf16(rng, ROWS, HEADS * 128),
        "lengths": np.ones(ROWS, np.int32),
    }


def test_a_packaged_decode_step_compiles_and_writes_nothing(expected: int, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    wheel = packaged.package(tmp_path / "dist", slugs=(SLUG, f"value-h{HEADS}-b{ROWS}"))
    site = packaged.install(wheel, tmp_path / "site")
    host = value_inputs()
    np.savez(tmp_path / "query.npz", **inputs())
    np.savez(tmp_path / "value.npz", **host)
    before = sorted((path, path.stat().st_mtime_ns) for path in site.rglob("*"))
    env = {"KGEN_JIT": "0", "KGEN_CACHE_DIR": str(tmp_path / "cache"), "HERE": str(tmp_path)}
    done = packaged.python(STEP, site, **env)
    assert done.returncode == 0, done.stderr
    assert fnv((tmp_path / "query").read_bytes()) == expected
    given = {name: cupy.asarray(array) for name, array in host.items()}
    out = kgen.value(heads=HEADS, batch=ROWS)(**given)
    assert (tmp_path / "value").read_bytes() == out.get().tobytes()
    assert sorted((path, path.stat().st_mtime_ns) for path in site.rglob("*")) == before


def test_the_c_example_writes_what_the_python_call_does(expected: int, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arch = nvml.default_arch()
    args = ("--arch", arch, "-o", folder, "--format", "header")
    assert packaged.kgen("package", SLUG, *args).exit_code == 0
    flags = (*WARN, "-std=c++17", "-I.", "-I", include())
    compile("gcc", "-O1", "-c", "kgen_cubins.c", cwd=folder)
    objects = ("kgen_cubins.o", "-l:libcuda.so.1", "-o", "launch")
    compile("g++", *flags, EXAMPLE, *objects, cwd=folder)
    done = subprocess.run([folder / "launch"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"out {expected:016x}" in done.stdout


class Counter:
    """The driver's library, with its module loads counted."""

    def __init__(self, library: Any) -> None:
        self.library, self.loads = library, 0

    def __getattr__(self, name: str) -> Any:
        self.loads += name in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute")
        return getattr(self.library, name)


def test_after_warmup_a_hundred_captures_load_nothing(
    arrays: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = pytest.importorskip("cupy")
    cuda = driver.get()
    counter = Counter(cuda.library)
    monkeypatch.setattr(cuda, "library", counter)
    monkeypatch.setattr(cuda, "functions", {})
    (warm,) = kgen.warmup(SLUG)
    assert counter.loads > 0
    loaded = ctypes.c_int(-1)
    cuda.call("cuFuncIsLoaded", ctypes.byref(loaded), warm._launcher.function(0, None).handle)
    assert loaded.value == 1  # CU_FUNCTION_LOADING_STATE_LOADED
    counter.loads = 0
    out = cupy.zeros((ROWS, HEADS, ROW), cupy.uint8)
    with cupy.cuda.Stream(non_blocking=True) as side:
        for _ in range(100):
            side.begin_capture()
            kernel = kgen.query(heads=HEADS, batch=ROWS)
            assert kernel is warm
            kernel(**arrays, out=out)
            graph = side.end_capture()
        graph.launch()
        side.synchronize()
    assert counter.loads == 0
    assert fnv(out.get().tobytes()) == expected


def test_a_cold_kernel_is_refused_under_capture_which_goes_on(
    arrays: dict[str, Any], expected: int
) -> None:
    cupy = pytest.importorskip("cupy")
    (warm,) = kgen.warmup(SLUG)
    cold = kgen.query(heads=HEADS, batch=ROWS, release="end")
    driver.get().functions.pop((cold.artifact.cubin.image, 0), None)
    out = cupy.zeros((ROWS, HEADS, ROW), cupy.uint8)
    with cupy.cuda.Stream(non_blocking=True) as side:
        side.begin_capture()
        with pytest.raises(DeviceError, match="captured"):
            cold(**arrays, out=out)
        warm(**arrays, out=out)
        graph = side.end_capture()
        graph.launch()
        side.synchronize()
    assert fnv(out.get().tobytes()) == expected


@pytest.mark.bench
def test_loading_a_cached_kernel_takes_at_most_3_ms() -> None:
    arch = nvml.default_arch()
    kgen.warmup([SLUG, "query_norm-b8"])
    times = []
    for _ in range(20):
        start = time.perf_counter()
        Kernel(build(Query(heads=HEADS, batch=ROWS), arch)).load()
        times.append(time.perf_counter() - start)
    assert statistics.median(times) <= 3e-3
