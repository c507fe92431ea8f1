"""A cubin becomes a function of each device that it is launched on, once, at first use."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import settings
from ..errors import DeviceError
from . import driver
from .driver import Device, Driver

if TYPE_CHECKING:
    from ..compiler.cubin import Cubin
    from ..plan import Plan

PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class Function:
    """A loaded kernel on one device, its attributes set; ``clusters`` of it fit there at once."""

    driver: Driver
    device: Device
    context: int
    handle: ctypes.c_void_p
    clusters: int


class Loader:
    """The functions of one cubin, by device ordinal; safe to share between threads.

    A loaded module stays loaded as long as the process: graphs may refer to it.
    """

    def __init__(self, plan: Plan, cubin: Cubin) -> None:
        self._plan, self._cubin = plan, cubin
        self._functions: dict[int, Function] = {}
        self._lock = threading.Lock()

    def get(self, ordinal: int, stream: int | None) -> Function:
        """The function on device ``ordinal``, loaded now unless it is already.

        Raises
        ------
        DeviceError
            When the device or its driver cannot run the cubin, or ``stream`` (None: do not ask) is
            being captured and nothing is loaded yet; the capture goes on unharmed.
        DriverError
            When a driver call fails for another reason.
        """
        function = self._functions.get(ordinal)
        if function is None:
            with self._lock:
                function = self._functions.get(ordinal) or self._load(ordinal, stream)
                self._functions[ordinal] = function
        return function

    def _load(self, ordinal: int, stream: int | None) -> Function:
        cuda = driver.get()
        device = cuda.device(ordinal)
        self._refuse(device)
        name = self._cubin.image, ordinal
        function: Function | None = cuda.functions.get(name)
        if function is None:
            function = cuda.functions[name] = self._load_code(cuda, device, stream)
        self._refuse_starving(device, function.clusters)
        return function

    def _load_code(self, cuda: Driver, device: Device, stream: int | None) -> Function:
        """Load the cubin, which other kernels may share."""
        with cuda.current(device.context):
            if stream is not None and cuda.capturing(stream):
                raise DeviceError(
                    f"{self._plan.entry} is not loaded on {device} yet, and the stream is being"
                    " captured: call it once, bind() or load() before the capture"
                )
            with cuda.relaxed_capture():
                handle = self._function(cuda, device)
                clusters = self._prepare(cuda, device, handle)
        return Function(cuda, device, device.context, handle, clusters)

    def _refuse(self, device: Device) -> None:
        plan, target = self._plan, self._plan.target
        if (device.major, device.minor) != (target.major, target.minor):
            raise DeviceError(
                f"arch: got a kernel for {target.name} (compute capability {target.major}."
                f"{target.minor}) and arrays on {device}; build it with the arch of that GPU"
            )
        smem = plan.smem_bytes + self._cubin.resources.smem_static
        if smem > device.smem_per_block:
            raise DeviceError(
                f"shared memory: {plan.entry} needs {smem} bytes a block;"
                f" {device} allows {device.smem_per_block}"
            )
        if plan.cluster > 1 and not device.clusters:
            raise DeviceError(
                f"cluster: {plan.entry} needs clusters of {plan.cluster} blocks; {device} has none"
            )

    def _function(self, cuda: Driver, device: Device) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = cuda.status("cuModuleLoadData", ctypes.byref(module), self._cubin.image)
        if code in (driver.INVALID_IMAGE, driver.NO_BINARY, driver.UNSUPPORTED_PTX):
            raise DeviceError(
                f"the driver of {device}, which supports CUDA {cuda.version()}, cannot load a cubin"
                f" for {self._cubin.arch}: {cuda.meaning(code)}; it is made by CUDA 13's compiler"
                " and needs a driver for CUDA 13.0 or newer"
            )
        if code:
            raise cuda.error("cuModuleLoadData", code)
        cuda.call("cuModuleGetFunction", ctypes.byref(function), module, self._cubin.entry.encode())
        return function

    def _prepare(self, cuda: Driver, device: Device, handle: ctypes.c_void_p) -> int:
        """Set the function's attributes; the clusters that fit at once, 0 without clusters."""
        plan = self._plan
        cuda.call("cuFuncSetAttribute", handle, driver.MAX_DYNAMIC_SMEM, plan.smem_bytes)
        if plan.cluster > PORTABLE_CLUSTER:
            cuda.call("cuFuncSetAttribute", handle, driver.NON_PORTABLE_CLUSTER, 1)
        if plan.cluster == 1:
            return 0
        count = ctypes.c_int()
        config = driver.launch_config(plan.grid, plan.threads, plan.smem_bytes)
        call = "cuOccupancyMaxActiveClusters"
        code = cuda.status(call, ctypes.byref(count), handle, ctypes.byref(config))
        if code not in (0, driver.INVALID_CLUSTER_SIZE):
            raise cuda.error(call, code)
        if code or count.value == 0:
            raise DeviceError(
                f"cluster: {plan.entry} needs clusters of {plan.cluster} blocks with"
                f" {plan.smem_bytes} bytes of shared memory each; {device} has room for 0 of them"
            )
        return count.value

    def _refuse_starving(self, device: Device, fit: int) -> None:
        """Refuse clusters that wait for others which this device cannot hold beside them."""
        plan = self._plan
        ranks = settings.RANKS_PER_GPU.value() if plan.polling else 1
        if not plan.polling or plan.resident(ranks) <= fit:
            return
        tiles = f" x {plan.grid[2]} tiles" if ranks > 1 else ""
        share = f" x {ranks} ranks on this GPU" if ranks > 1 else ""
        way = {"query": "build it with poll off and launch query_wait after it"}
        raise DeviceError(
            f"co-residency: {plan.entry} polls, so {plan.resident(ranks)} clusters of"
            f" {plan.cluster} blocks must run at once ({plan.polling} a tile{tiles}{share});"
            f" {device} fits {fit}: {way.get(plan.config.kernel, 'share it among fewer ranks')}"
        )
