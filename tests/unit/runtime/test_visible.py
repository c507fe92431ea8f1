"""Which GPU a process means where it names none."""

from __future__ import annotations

import pytest

from kgen.codegen.errors import DeviceError, TargetError
from kgen.codegen.runtime import driver, nvml
from kgen.codegen.runtime.nvml import Gpu

H200, B200, OLD = (
    Gpu(0, "H200", "9.0", 1, "sm_90a", "GPU-aaaa-1"),
    Gpu(1, "B200", "10.0", 1, "sm_100a", "GPU-bbbb-2"),
    Gpu(2, "V100", "7.0", 1, None, "GPU-cccc-3"),
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "gpus", lambda: (H200, B200, OLD))
    monkeypatch.setattr(driver, "current_capability", lambda: None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, (H200, B200, OLD)),
        ("1", (B200,)),
        ("1,0", (B200, H200)),
        ("GPU-bbbb", (B200,)),
        ("1,7,0", (B200,)),
        ("-1", ()),
        ("", ()),
    ],
)
def test_what_cuda_shows(
    text: str | None, shown: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert nvml.visible() == shown
    assert nvml.default_arch() == (shown[0].target if shown else "sm_90a")


def test_the_current_context_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "current_capability", lambda: (10, 3))
    assert nvml.default_arch() == "sm_103a"


def test_a_gpu_without_a_target_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(TargetError, match=r"compute capability: got '7\.0'"):
        nvml.default_arch()


def test_no_driver_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[Gpu, ...]:
        raise DeviceError("no GPU")

    monkeypatch.setattr(nvml, "gpus", none)
    assert nvml.default_arch() == "sm_90a"


def test_a_failure_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    nvml.gpus.cache_clear()
    outcomes = [DeviceError("no GPU"), None]

    class Session:
        def __enter__(self) -> object:
            if error := outcomes.pop(0):
                raise error
            return type("Nvml", (), {"nvmlDeviceGetCount": staticmethod(lambda: 0)})

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(nvml, "session", Session)
    with pytest.raises(DeviceError):
        nvml.gpus()
    assert nvml.gpus() == () and not outcomes
    nvml.gpus.cache_clear()


def test_without_a_loaded_driver_no_context_is_current() -> None:
    if driver.current_capability() is not None:
        pytest.skip("a CUDA context is current in this process")
