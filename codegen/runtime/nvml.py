"""The GPUs of this machine as NVML tells them: no CUDA context, no driver state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import targets
from ..errors import ConfigError, DeviceError


@dataclass(frozen=True)
class Gpu:
    """One GPU: ``memory`` in bytes, ``target`` None where kgen has none for it."""

    index: int
    name: str
    capability: str
    memory: int
    target: str | None


@contextmanager
def session() -> Iterator[Any]:
    """The initialised ``pynvml`` module.

    Raises
    ------
    DeviceError
        When NVML is missing or refuses: this machine has no usable NVIDIA driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(f"no GPU: NVML says {error}") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML says {error}") from None
    finally:
        pynvml.nvmlShutdown()


def gpus() -> tuple[Gpu, ...]:
    """All GPUs, in NVML's order; DeviceError without a driver."""
    with session() as nvml:
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))


def require() -> None:
    """DeviceError unless there is a GPU that kgen has a target for."""
    found = gpus()
    if not found:
        raise DeviceError("no GPU: NVML lists none")
    if not any(gpu.target for gpu in found):
        have = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in found)
        raise DeviceError(f"no GPU that kgen has a target for: found {have}")


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        capability=f"{major}.{minor}",
        memory=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        target=_target(major, minor),
    )


def _target(major: int, minor: int) -> str | None:
    try:
        return targets.from_capability(major, minor).name
    except ConfigError:
        return None


def driver() -> dict[str, str]:
    """Versions of the kernel driver and of the CUDA that it supports."""
    with session() as nvml:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }


def default_arch() -> str:
    """The target of the first GPU here that kgen knows, else :data:`arch.DEFAULT`."""
    try:
        here = gpus()
    except DeviceError:
        return targets.DEFAULT
    return next((gpu.target for gpu in here if gpu.target), targets.DEFAULT)
