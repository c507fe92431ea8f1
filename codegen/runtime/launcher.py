"""Launches: everything that a call of the driver needs, built before it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from . import driver
from .driver import LaunchAttribute
from .loader import Function, Loader

if TYPE_CHECKING:
    from ..compiler.cubin import Cubin
    from ..plan import Plan


class Frame:
    """The memory that one launch hands to the driver; no two launches use it at a time."""

    __slots__ = ("attribute", "buffer", "config", "config_ref", "current", "current_ref", "params")

    def __init__(self, plan: Plan) -> None:
        self.buffer = ctypes.create_string_buffer(plan.params.size)
        self.params = (ctypes.c_void_p * 1)(ctypes.addressof(self.buffer))
        self.attribute = LaunchAttribute(id=driver.PROGRAMMATIC_STREAM_SERIALIZATION)
        self.attribute.value[0] = 1
        self.config = driver.launch_config(
            plan.grid, plan.threads, plan.smem_bytes, ctypes.pointer(self.attribute)
        )
        self.config_ref = ctypes.byref(self.config)
        self.current = ctypes.c_void_p()
        self.current_ref = ctypes.byref(self.current)


class Launcher:
    """Launches one kernel on any device and stream, from any number of threads."""

    def __init__(self, plan: Plan, cubin: Cubin) -> None:
        self._plan = plan
        self._waits = cubin.waits
        self._loader = Loader(plan, cubin)
        self._free: list[Frame] = []  # list.pop and list.append are atomic
        self.function = self._loader.get

    def with_rows(self, packed: bytes, rows: int) -> bytes:
        """The parameter struct ``packed`` with another ``num_rows``."""
        place = self._plan.params.offset("num_rows")
        return packed[:place] + rows.to_bytes(4, "little") + packed[place + 4 :]

    def launch(self, function: Function, packed: bytes, stream: int, pdl: bool) -> None:
        """Launch with the parameter struct ``packed`` on the stream with the handle ``stream``.

        With ``pdl`` it starts before the grid ahead ends, if it waits for that on every path.

        The context of the function's device is current during the call, whatever the calling
        thread had before; the thread has that again afterwards.

        Raises
        ------
        DriverError
            When the driver refuses the launch, or reports an earlier kernel's failure.
        """
        try:
            frame = self._free.pop()
        except IndexError:
            frame = Frame(self._plan)
        frame.buffer.raw = packed
        frame.config.stream = stream
        frame.config.num_attributes = pdl and self._waits
        cuda = function.driver
        cuda.get_current(frame.current_ref)
        if frame.current.value == function.context:
            code = cuda.launch(frame.config_ref, function.handle, frame.params, None)
        else:
            cuda.push(function.context)
            code = cuda.launch(frame.config_ref, function.handle, frame.params, None)
            cuda.pop()
        self._free.append(frame)
        if code:
            raise cuda.error("cuLaunchKernelEx", code)
