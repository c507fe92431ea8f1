"""The GPUs of this machine as NVML tells them: no CUDA context, no driver state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from .. import targets
from ..errors import ConfigError, DeviceError
from . import driver as cuda_driver


@dataclass(frozen=True)
class Gpu:
    """One GPU: ``memory`` in bytes, ``target`` None where kgen has none for it."""

    index: int
    name: str
    capability: str
    memory: int
    target: str | None
    uuid: str = ""


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


@cache
def gpus() -> tuple[Gpu, ...]:
    """All GPUs, in NVML's order; DeviceError without a driver. A failure is not remembered."""
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
        uuid=nvml.nvmlDeviceGetUUID(handle),
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


def visible() -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows this process: all, or those of ``CUDA_VISIBLE_DEVICES`` in its
    order, by index or by the beginning of a UUID; the first name that is none ends the list."""
    found = gpus()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return found
    shown = []
    for name in map(str.strip, names.split(",")):
        chosen = [each for each in found if name in (str(each.index), each.uuid[: len(name)])]
        if not (name and chosen):
            break
        shown.append(chosen[0])
    return tuple(shown)


def default_arch() -> str:
    """The target of the GPU that this process uses: the current device's where a CUDA context is
    current, else that of the first visible one; :data:`targets.DEFAULT` where there is no GPU.

    Raises
    ------
    TargetError
        When kgen has no target for that GPU.
    """
    if capability := cuda_driver.current_capability():
        return targets.from_capability(*capability).name
    try:
        here = visible()
    except DeviceError:
        return targets.DEFAULT
    if not here:
        return targets.DEFAULT
    major, minor = here[0].capability.split(".")
    return targets.from_capability(int(major), int(minor)).name
