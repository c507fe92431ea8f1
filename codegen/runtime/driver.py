"""The few calls of the CUDA driver that kgen makes, through ctypes, and what their errors mean.

Nothing here runs at import: :func:`get` loads ``libcuda.so.1`` and initialises it on first use.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError, DriverError

INVALID_IMAGE, NO_BINARY, UNSUPPORTED_PTX = 200, 209, 222
INVALID_CLUSTER_SIZE = 912

# CUdevice_attribute
CAPABILITY_MAJOR, CAPABILITY_MINOR, SMEM_PER_BLOCK, CLUSTER_LAUNCH = 75, 76, 97, 120
# CUfunction_attribute
MAX_DYNAMIC_SMEM, NON_PORTABLE_CLUSTER = 8, 14
# CUlaunchAttributeID, CUpointer_attribute, CUstreamCaptureMode
PROGRAMMATIC_STREAM_SERIALIZATION = 6
POINTER_DEVICE = 9
CAPTURE_RELAXED = 2
EVENT_DISABLE_TIMING = 2  # CUevent_flags

_HINTS = {
    3: "a process forked after CUDA was initialised cannot use it: start it with spawn",
    **dict.fromkeys(range(700, 720), "an earlier kernel of this process may have caused it"),
}


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: a number and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Device:
    """One GPU and its primary context; ``smem_per_block`` is what a block may ask for, in bytes."""

    ordinal: int
    name: str
    major: int
    minor: int
    smem_per_block: int
    clusters: bool
    context: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal} ({self.name}, compute capability {self.major}.{self.minor})"


class Driver:
    """The initialised driver.

    Parameters
    ----------
    library
        ``ctypes.CDLL`` of libcuda. Its calls release the GIL: a launch may block while the queue
        is full, and a host function of the stream may need the GIL to empty it.

    Raises
    ------
    DeviceError
        When the driver lacks a call that kgen needs, or finds no GPU.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self._devices: dict[int, Device] = {}
        self.functions: dict[tuple[bytes, int], Any] = {}  # what is loaded, by image and ordinal
        try:
            self.launch = library.cuLaunchKernelEx
            self.get_current = library.cuCtxGetCurrent
        except AttributeError:
            raise DeviceError(
                "the CUDA driver is too old, it has no cuLaunchKernelEx: CUDA 13.0 is needed"
            ) from None
        if code := library.cuInit(0):
            raise DeviceError(f"the CUDA driver does not start: {self.meaning(code)}")

    def status(self, call: str, *arguments: Any) -> int:
        """The result code of ``call``; pointers and handles come as ctypes objects."""
        return int(getattr(self.library, call)(*arguments))

    def call(self, call: str, *arguments: Any) -> None:
        """``call``, raising DriverError unless it succeeds."""
        if code := self.status(call, *arguments):
            raise self.error(call, code)

    def error(self, call: str, code: int) -> DriverError:
        """The exception for ``code`` as ``call`` returned it."""
        hint = f" ({_HINTS[code]})" if code in _HINTS else ""
        return DriverError(f"{call} failed with {self.meaning(code)}{hint}")

    def meaning(self, code: int) -> str:
        """Name, number and text of a result code."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        self.library.cuGetErrorString(code, ctypes.byref(text))
        if name.value is None:
            return f"error {code}, which this driver does not name"
        return f"{name.value.decode()} ({code}): {(text.value or b'').decode()}"

    def version(self) -> str:
        """The CUDA version that the driver supports, such as ``13.0``."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def device(self, ordinal: int) -> Device:
        """The device ``ordinal``, its primary context retained for the life of the process."""
        if ordinal not in self._devices:
            self._devices[ordinal] = self._device(ordinal)
        return self._devices[ordinal]

    def _device(self, ordinal: int) -> Device:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        name = ctypes.create_string_buffer(96)
        self.call("cuDeviceGetName", name, len(name), handle)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        return Device(
            ordinal=ordinal,
            name=name.value.decode(),
            major=self._attribute(handle, CAPABILITY_MAJOR),
            minor=self._attribute(handle, CAPABILITY_MINOR),
            smem_per_block=self._attribute(handle, SMEM_PER_BLOCK),
            clusters=bool(self._attribute(handle, CLUSTER_LAUNCH)),
            context=context.value or 0,
        )

    def _attribute(self, handle: ctypes.c_int, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
        return value.value

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device that holds ``pointer``, or -1 for memory of no device."""
        ordinal = ctypes.c_int(-1)
        code = self.status(
            "cuPointerGetAttribute", ctypes.byref(ordinal), POINTER_DEVICE, ctypes.c_void_p(pointer)
        )
        return -1 if code else ordinal.value

    @contextmanager
    def current(self, context: int) -> Iterator[None]:
        """``context`` is the calling thread's inside, and what was there before is after."""
        self.push(context)
        try:
            yield
        finally:
            self.pop()

    def push(self, context: int) -> None:
        """Make ``context`` the calling thread's; to be undone by :meth:`pop`."""
        if code := self.library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)):
            raise self.error("cuCtxPushCurrent", code)

    def pop(self) -> None:
        """Give the calling thread back the context that it had before :meth:`push`."""
        if code := self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())):
            raise self.error("cuCtxPopCurrent", code)

    def capturing(self, stream: int) -> bool:
        """Whether ``stream`` records a graph, or cannot be used because another one does."""
        state = ctypes.c_int()
        code = self.status("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(state))
        return bool(code or state.value)

    def order(self, first: int, then: int) -> None:
        """What follows on the stream ``then`` waits for what is on ``first`` now."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), EVENT_DISABLE_TIMING)
        try:
            self.call("cuEventRecord", event, ctypes.c_void_p(first))
            self.call("cuStreamWaitEvent", ctypes.c_void_p(then), event, 0)
        finally:
            self.status("cuEventDestroy_v2", event)

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Calls of this thread do not spoil the captures of others inside."""
        mode = ctypes.c_int(CAPTURE_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


_lock = threading.Lock()
_driver: Driver | None = None


def get() -> Driver:
    """The driver of this process, loaded and initialised by the first call.

    Raises
    ------
    DeviceError
        When there is no driver, or it finds no GPU.
    """
    global _driver
    if _driver is None:
        with _lock:
            if _driver is None:
                _driver = Driver(_library())
    return _driver


def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"no CUDA driver here: {error}") from None


def current_capability() -> tuple[int, int] | None:
    """The compute capability of the device whose context is current in this thread; None where
    there is none. Nothing is loaded or initialised."""
    try:
        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None
    device, numbers = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    if library.cuCtxGetDevice(ctypes.byref(device)):
        return None
    for number, attribute in zip(numbers, (CAPABILITY_MAJOR, CAPABILITY_MINOR), strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return numbers[0].value, numbers[1].value


def launch_config(
    grid: tuple[int, int, int], threads: int, smem: int, attributes: Any = None
) -> LaunchConfig:
    """A configuration for the null stream; ``attributes`` are counted in by the caller."""
    return LaunchConfig(
        grid=grid, block=(threads, 1, 1), smem=smem, stream=None, attributes=attributes
    )
