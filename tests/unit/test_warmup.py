"""warmup on a machine of fakes: what it builds and loads, and that nothing is loaded later."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import kgen
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.compiler.render import Source
from kgen.codegen.errors import ConfigError, DeviceError, KgenError
from kgen.codegen.schema import Query, QueryNorm

from ..helpers import cubins
from ..helpers.fakes import FakeCuda, install, tensors

PATCH = pytest.MonkeyPatch
SLUGS = ("query-h2-b8", "query-h2-b4", "query_norm-b8")
LOADS = ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute")


@pytest.fixture
def cuda(monkeypatch: PATCH) -> FakeCuda:
    return install(monkeypatch)[0]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: PATCH, tmp_path: Path) -> list[str]:
    """What a stand-in for NVRTC compiles."""
    names: list[str] = []

    def compile(source: Source, arch: str) -> Cubin:
        names.append(source.name)
        if "wgmma" in source.name:
            raise kgen.CompileError(f"{source.name} is refused")
        return cubins.compiled(source, arch)

    monkeypatch.setattr(nvrtc, "compile", compile)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KGEN_ARCH", "sm_90a")
    return names


def loads(cuda: FakeCuda) -> int:
    return sum(name in LOADS for name in cuda.names())


def call(kernel: Any, stream: int | None = None) -> None:
    given = tensors()
    kernel(given.pop("qkv"), stream=stream, **given)


def test_what_shares_a_cubin_is_built_and_loaded_once(cuda: FakeCuda, compiled: list[str]) -> None:
    kernels = kgen.warmup(SLUGS)
    assert [kernel.config.slug for kernel in kernels] == list(SLUGS)
    assert sorted(compiled) == [
        "query_folded8_alone_release_start.cu",
        "query_norm_row1_release_start.cu",
    ]
    assert cuda.names().count("cuModuleLoadData") == 2 and cuda.stack == []
    assert kgen.warmup(SLUGS) == kernels
    assert cuda.names().count("cuModuleLoadData") == 2


def test_nothing_is_loaded_by_a_hundred_captures(cuda: FakeCuda) -> None:
    (warm, *_) = kgen.warmup(SLUGS)
    before = loads(cuda)
    cuda.capturing.add(0x70)
    for _ in range(100):
        kernel = kgen.query(heads=2, batch=8)
        assert kernel is warm
        call(kernel)
        given = tensors()
        kernel.bind(given.pop("qkv"), **given)()
    assert len(cuda.launches) == 200 and {run.stream for run in cuda.launches} == {0x70}
    assert loads(cuda) == before


def test_a_cold_kernel_is_refused_under_capture_which_goes_on(cuda: FakeCuda) -> None:
    (warm,) = kgen.warmup("query-h2-b8")
    cuda.capturing.add(0x70)
    before = cuda.names()
    with pytest.raises(DeviceError, match=r"_no_release is not loaded on cuda:0 .* captured"):
        call(kgen.query(heads=2, batch=8, release=False))
    made = set(cuda.names()[len(before) :])
    assert made <= {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamIsCapturing"}
    call(warm)
    assert [run.stream for run in cuda.launches] == [0x70]


def test_several_devices(cuda: FakeCuda) -> None:
    kgen.warmup("query-h2-b8", devices=(0, 1))
    assert cuda.names().count("cuModuleLoadData") == 2
    (kernel,) = kgen.warmup("query-h2-b8", devices=[1])
    given = tensors(device=1)
    kernel(given.pop("qkv"), **given)
    assert cuda.names().count("cuModuleLoadData") == 2


def test_a_plan_is_a_file_a_slug_a_configuration_or_several(cuda: FakeCuda, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[[query]]\nheads = 2\nbatch = [4, 8]\n")
    both = ["query-h2-b4", "query-h2-b8"]

    def found(plan: Any) -> list[str]:
        return [kernel.config.slug for kernel in kgen.warmup(plan)]

    assert found(path) == found(str(path)) == both
    assert found(Query(heads=2, batch=4)) == found("query-h2-b4") == both[:1]
    assert found([path, "query-h2-b8", QueryNorm(batch=8)]) == [*both, "query_norm-b8"]


def test_a_failure_is_named_and_nothing_is_loaded(cuda: FakeCuda) -> None:
    with pytest.raises(kgen.CompileError, match=r"query_wgmma16x4\.cu is refused"):
        kgen.warmup(["query-h2-b8", "query-h3-b16"])
    with pytest.raises(KgenError, match="2 kernels could not be built") as caught:
        kgen.warmup(["query-h2-b8", "query-h3-b16", "query-h3-b17"])
    assert "query-h3-b16 sm_90a: " in str(caught.value) and "query-h3-b17" in str(caught.value)
    assert loads(cuda) == 0


def test_a_mistake_and_a_missing_gpu_are_named(cuda: FakeCuda, monkeypatch: PATCH) -> None:
    with pytest.raises(ConfigError, match="batch"):
        kgen.warmup("query-h2")
    with pytest.raises(DeviceError, match=r"arch: got a kernel for sm_100a"):
        kgen.warmup("query-h2-b8", arch="sm_100a")


def test_without_jit_all_misses_are_named(cuda: FakeCuda, monkeypatch: PATCH) -> None:
    kgen.warmup("query-h2-b8")
    monkeypatch.setenv("KGEN_JIT", "0")
    assert len(kgen.warmup("query-h2-b8")) == 1
    with pytest.raises(KgenError, match="2 kernels could not be built") as caught:
        kgen.warmup(["query-h2-b8", "query-h2-b9", "query_norm-b9"])
    assert str(caught.value).count("to fix: kgen package ") == 2


@pytest.mark.bench
def test_look_up_of_a_loaded_kernel_takes_at_most_20_us(cuda: FakeCuda) -> None:
    kgen.warmup("query-h2-b8")
    kgen.query(heads=2, batch=8)
    seconds = []
    for _ in range(2000):
        start = time.perf_counter()
        kgen.query(heads=2, batch=8)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[len(seconds) // 2] <= 20e-6
