from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import kgen
from kgen.codegen import api
from kgen.codegen.errors import ArgumentError, ConfigError, DeviceError
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.targets import target

from ..helpers import fakes
from ..helpers.fakes import FakeCuda, FakeTensor, FakeTorch, install, tensors

PATCH = pytest.MonkeyPatch


@pytest.fixture
def cuda(monkeypatch: PATCH) -> FakeCuda:
    return install(monkeypatch)[0]


@pytest.fixture
def torch(cuda: FakeCuda) -> FakeTorch:
    return sys.modules["torch"]  # type: ignore[return-value]


@pytest.fixture
def kernel() -> Kernel:
    artifact: Any = SimpleNamespace(plan=fakes.plan(), cubin=fakes.cubin())
    return Kernel(artifact)


def split(**changes: Any) -> tuple[Any, dict[str, Any]]:
    given = tensors(**changes)
    return given.pop("qkv"), given


def test_call_launches_on_the_current_stream_of_this_call(
    cuda: FakeCuda, torch: FakeTorch, kernel: Kernel
) -> None:
    qkv, rest = split()
    assert kernel(qkv, **rest) is rest["out"]
    torch.current[0] = 0x99
    kernel(qkv=qkv, pdl=False, **rest)
    assert [(run.stream, run.pdl) for run in cuda.launches] == [(0x70, True), (0x99, False)]


def test_device_of_the_arrays(cuda: FakeCuda, kernel: Kernel) -> None:
    qkv, rest = split(device=1)
    kernel(qkv, **rest)
    (run,) = cuda.launches
    assert (run.context, run.stream) == (fakes.context_of(1), 0x71)


@pytest.mark.parametrize("stream", [0x55, SimpleNamespace(cuda_stream=0x55, device_index=0)])
def test_stream_given(cuda: FakeCuda, torch: FakeTorch, kernel: Kernel, stream: Any) -> None:
    qkv, rest = split(out=None)
    out = kernel(qkv, stream=stream, **rest)
    kernel.bind(qkv, **rest)(stream=stream)
    assert [run.stream for run in cuda.launches] == [0x55, 0x55]
    assert torch.allocated[0] == (out, 0x55)


def test_stream_of_another_device(cuda: FakeCuda, kernel: Kernel) -> None:
    qkv, rest = split()
    stream = SimpleNamespace(cuda_stream=0x55, device_index=1)
    with pytest.raises(ArgumentError, match="stream: got one of cuda:1"):
        kernel(qkv, stream=stream, **rest)
    with pytest.raises(ArgumentError, match="stream: got one of cuda:1"):
        kernel.bind(qkv, **rest)(stream=stream)
    assert not cuda.launches


def test_bound_launch_keeps_no_stream(cuda: FakeCuda, torch: FakeTorch, kernel: Kernel) -> None:
    qkv, rest = split()
    step = kernel.bind(qkv, pdl=False, **rest)
    assert "cuModuleLoadData" in cuda.names() and not cuda.launches
    assert step() is rest["out"]
    torch.current[0] = 0x99
    step()
    assert [(run.stream, run.pdl) for run in cuda.launches] == [(0x70, False), (0x99, False)]
    assert cuda.launches[0].params == cuda.launches[1].params


def test_no_rows_launch_nothing(cuda: FakeCuda, kernel: Kernel) -> None:
    qkv, rest = split()
    assert kernel(qkv, num_rows=0, **rest) is rest["out"]
    kernel.bind(qkv, num_rows=0, **rest)()
    assert not cuda.launches


def test_bound_launch_keeps_its_arrays(cuda: FakeCuda, kernel: Kernel) -> None:
    import weakref

    qkv, rest = split()
    alive = weakref.ref(qkv)
    step = kernel.bind(qkv, **rest)
    del qkv
    assert alive() is not None
    del step
    assert alive() is None


def test_load_needs_no_launch(cuda: FakeCuda, kernel: Kernel) -> None:
    kernel.load(1)
    qkv, rest = split(device=1)
    cuda.capturing.add(0x71)
    kernel(qkv, **rest)
    assert cuda.names().count("cuModuleLoadData") == 1


def test_cold_call_and_bind_under_capture_are_refused(cuda: FakeCuda, kernel: Kernel) -> None:
    cuda.capturing.add(0x70)
    qkv, rest = split()
    for attempt in (kernel, kernel.bind):
        with pytest.raises(DeviceError, match="captured"):
            attempt(qkv, **rest)
    cuda.capturing.clear()
    kernel.bind(qkv, **rest)
    cuda.capturing.add(0x70)
    kernel(qkv, **rest)
    assert len(cuda.launches) == 1


def test_by_position_goes_only_the_first(kernel: Kernel, cuda: FakeCuda) -> None:
    qkv, rest = split()
    with pytest.raises(ArgumentError, match="qkv: got 2 arguments by position; allowed is one"):
        kernel(qkv, qkv, **rest)
    with pytest.raises(ArgumentError, match="1 arguments by position and one by name"):
        kernel(qkv, qkv=qkv, **rest)


def test_nothing_is_launched_after_a_refusal(cuda: FakeCuda, kernel: Kernel) -> None:
    qkv, rest = split(w_qa=FakeTensor((1536,), "float32", 64))
    with pytest.raises(ArgumentError, match="w_qa"):
        kernel(qkv, **rest)
    assert not cuda.launches


def test_signature_lists_the_parameter_table(kernel: Kernel) -> None:
    signature = inspect.signature(kernel)
    assert list(signature.parameters) == [*fakes.table().names, "stream", "pdl"]
    assert signature.parameters["out"].default is None
    assert signature.parameters["eps"].default == 1e-6
    assert signature.parameters["w_qa"].default is inspect.Parameter.empty


def test_query_builds_for_the_arch_that_is_asked(monkeypatch: PATCH) -> None:
    asked: list[tuple[str, str]] = []

    def build(config: Any, arch: str) -> Any:
        asked.append((config.slug, arch))
        return SimpleNamespace(plan=fakes.plan(target=target(arch)), cubin=fakes.cubin())

    monkeypatch.setattr(api, "build", build)
    monkeypatch.setattr(nvml, "default_arch", lambda: "sm_100a")
    kgen.query(heads=2, batch=8)
    monkeypatch.setenv("KGEN_ARCH", "sm_103a")
    kgen.query(heads=2, batch=8)
    kgen.query(heads=2, batch=8, arch="sm_90a")
    assert [arch for _, arch in asked] == ["sm_100a", "sm_103a", "sm_90a"]
    assert {slug for slug, _ in asked} == {"query-h2-b8"}


def test_a_process_has_one_kernel_of_each(monkeypatch: PATCH) -> None:
    asked: list[str] = []

    def build(config: Any, arch: str) -> Any:
        asked.append(arch)
        return SimpleNamespace(plan=fakes.plan(target=target(arch)), cubin=fakes.cubin())

    monkeypatch.setattr(api, "build", build)
    first = kgen.query(heads=2, batch=8, arch="sm_90a")
    assert kgen.query(heads=2, batch=8, arch="sm_90a") is first
    assert kgen.query(heads=2, batch=8, arch="sm_90") is first
    assert kgen.query(heads=2, batch=8, arch="sm_100a") is not first
    assert asked == ["sm_90a", "sm_90", "sm_100a"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"heads": 0, "batch": 1}, "heads"),
        ({"heads": 1}, "batch"),
        ({"x": 1}, "x"),
        ({"heads": 8.0, "batch": 1}, "heads"),
        ({"heads": True, "batch": 1}, "heads"),
        ({"heads": [8], "batch": 1}, "heads"),
        ({"heads": 8, "batch": 1, "dsa": 1}, "dsa"),
    ],
)
def test_query_refuses_what_the_schema_refuses(fields: dict[str, Any], name: str) -> None:
    legal: tuple[dict[str, Any], ...] = (
        {"heads": 8, "batch": 1, "dsa": True},
        {"heads": 1, "batch": 1},
    )
    for known in legal:
        with pytest.raises(ConfigError, match="arch: got 'none'"):
            kgen.query(arch="none", **known)
    with pytest.raises(ConfigError) as error:
        kgen.query(**fields)
    assert error.value.field in (name, "heads")


def test_public_names() -> None:
    for name in dir(kgen):
        assert getattr(kgen, name) is not None
    assert kgen.ArgumentError is ArgumentError
    assert kgen.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="nothing"):
        getattr(kgen, "nothing")  # noqa: B009


def test_import_is_light() -> None:
    code = "import kgen, sys; print(len([m for m in sys.modules if m.startswith('kgen')]))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "1"
