"""Stand-ins for a machine with GPUs: the driver library, arrays of each kind, a built kernel."""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.plan import Array, Axis, ParamTable, Plan, Scalar
from kgen.codegen.runtime import arrays, driver
from kgen.codegen.runtime.arrays import packed
from kgen.codegen.schema import Query

from . import cubins

NAMES = {
    0: "CUDA_SUCCESS",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    912: "CUDA_ERROR_INVALID_CLUSTER_SIZE",
}


@dataclass
class Launch:
    """One call of cuLaunchKernelEx."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    smem: int
    stream: int
    pdl: bool
    function: int
    params: bytes
    context: int
    thread: int


@dataclass
class FakeCuda:
    """A driver library of several GPUs, as ctypes callers see it."""

    devices: int = 2
    capability: tuple[int, int] = (9, 0)
    smem: int = 232448
    clusters: int = 1
    active_clusters: int = 33
    version: int = 13000
    params_size: int = 0
    capturing: set[int] = field(default_factory=set)
    fails: dict[str, int] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)  # pointer -> device, for foreign arrays
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.local()

    @property
    def stack(self) -> list[int]:
        """The calling thread's contexts, the current one last; a fresh thread has none."""
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        call = getattr(type(self), f"_{name}", None)

        def library_call(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name in self.fails:
                return self.fails[name]
            return (call(self, *arguments) if call else 0) or 0

        return library_call

    def names(self) -> list[str]:
        """The calls so far, by name."""
        return [call[0] for call in self.calls]

    def _cuGetErrorName(self, code: int, out: Any) -> int:
        out._obj.value = NAMES.get(code, "CUDA_ERROR_UNKNOWN").encode()
        return 0

    def _cuGetErrorString(self, code: int, out: Any) -> int:
        out._obj.value = b"what it means"
        return 0

    def _cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def _cuDeviceGet(self, out: Any, ordinal: int) -> int:
        out._obj.value = ordinal
        return 0 if ordinal < self.devices else 101

    def _cuDeviceGetName(self, out: Any, size: int, handle: Any) -> int:
        out.value = b"NVIDIA Fake"
        return 0

    def _cuDevicePrimaryCtxRetain(self, out: Any, handle: Any) -> int:
        out._obj.value = context_of(handle.value)
        return 0

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, handle: Any) -> int:
        major, minor = self.capability
        out._obj.value = {75: major, 76: minor, 97: self.smem, 120: self.clusters}[attribute]
        return 0

    def _cuPointerGetAttribute(self, out: Any, attribute: int, pointer: Any) -> int:
        device = self.memory.get(pointer.value, -1)
        out._obj.value = device
        return 1 if device < 0 else 0

    def _cuCtxGetCurrent(self, out: Any) -> int:
        out._obj.value = self.stack[-1] if self.stack else None
        return 0

    def _cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.stack.append(context.value)
        return 0

    def _cuCtxPopCurrent_v2(self, out: Any) -> int:
        out._obj.value = self.stack.pop()
        return 0

    def _cuStreamIsCapturing(self, stream: Any, out: Any) -> int:
        out._obj.value = int((stream.value or 0) in self.capturing)
        return 0

    def _cuModuleLoadData(self, out: Any, image: bytes) -> int:
        out._obj.value = 0x1000 + len([c for c in self.calls if c[0] == "cuModuleLoadData"])
        return 0

    def _cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> int:
        out._obj.value = module.value << 8
        return 0

    def _cuOccupancyMaxActiveClusters(self, out: Any, function: Any, config: Any) -> int:
        out._obj.value = self.active_clusters
        return 0

    def _cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        config = config._obj
        if config.num_attributes:
            attribute = config.attributes[0]
            assert (attribute.id, attribute.value[0]) == (6, 1)
        self.launches.append(
            Launch(
                grid=tuple(config.grid),
                block=tuple(config.block),
                smem=config.smem,
                stream=config.stream or 0,
                pdl=bool(config.num_attributes),
                function=function.value,
                params=ctypes.string_at(params[0], self.params_size),
                context=self.stack[-1] if self.stack else 0,
                thread=threading.get_ident(),
            )
        )
        return 0


def context_of(device: int) -> int:
    """The primary context of a device."""
    return 0xC0 + device


class FakeTensor:
    """What kgen reads of a ``torch.Tensor``."""

    __module__ = "torch"

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        pointer: int,
        strides: tuple[int, ...] | None = None,
        device: int = 0,
    ) -> None:
        self.shape, self.dtype, self.pointer = shape, FakeDtype(dtype), pointer
        self.strides = packed(shape) if strides is None else strides
        self.device = device
        self.is_cuda = device >= 0

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return self.device

    def stride(self) -> tuple[int, ...]:
        return self.strides


@dataclass(frozen=True)
class FakeDtype:
    """A ``torch.dtype``."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


class FakeTorch(ModuleType):
    """The module ``torch``, with a current stream a device and an allocator."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.current = {0: 0x70, 1: 0x71}
        self.allocated: list[tuple[FakeTensor, int | None]] = []
        self._place: int | None = None
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: self.current[device])
        self.cuda = SimpleNamespace(ExternalStream=lambda s, device: s, stream=self._on)
        for name in ("float8_e4m3fn", "bfloat16"):
            setattr(self, name, name)

    def _on(self, stream: int | None) -> Any:
        outer = self

        class On:
            def __enter__(self) -> None:
                outer._place = stream

            def __exit__(self, *error: object) -> None:
                outer._place = None

        return On()

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> FakeTensor:
        tensor = FakeTensor(shape, dtype, 0xF000_0000, device=int(device.removeprefix("cuda:")))
        self.allocated.append((tensor, self._place))
        return tensor


class Interface:
    """An array with nothing but ``__cuda_array_interface__``."""

    def __init__(self, shape: tuple[int, ...], typestr: str, pointer: int, **extra: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (pointer, False),
            "version": 3,
            **extra,
        }


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Dlpack:
    """An array with nothing but DLPack."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: tuple[int, int],
        pointer: int,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
        device: tuple[int, int] = (2, 0),
    ) -> None:
        numbers = ctypes.c_int64 * len(shape)
        self._device = device
        self._tensor = _Tensor(
            data=pointer,
            device=device,
            ndim=len(shape),
            code=dtype[0],
            bits=dtype[1],
            lanes=1,
            shape=numbers(*shape),
            strides=numbers(*strides) if strides else None,
            byte_offset=offset,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def table(heads: int = 2, batch: int = 8) -> ParamTable:
    """The parameters of the dense query kernel."""
    return ParamTable(
        arrays=(
            Array("qkv", "bf16", (Axis(rows=True, stride="qkv_stride"), Axis(2112, at_least=True))),
            Array("w_qa", "bf16", (Axis(1536),)),
            Array("w_kva", "bf16", (Axis(512),)),
            Array("w_qb", "bf16", (Axis(heads * 192), Axis(1536))),
            Array("w_uk", "bf16", (Axis(heads, stride="w_uk_stride"), Axis(128), Axis(512))),
            Array(
                "cache",
                "u8",
                (Axis(stride="page_stride"), Axis(size="page_size"), Axis(576)),
                role="inout",
            ),
            Array("slots", "i64", (Axis(rows=True),), align=8),
            Array("q_scale_inv", "f32", align=4),
            Array("k_scale_inv", "f32", align=4),
            Array(
                "out",
                "e4m3",
                (Axis(rows=True, stride="out_stride"), Axis(heads), Axis(576)),
                role="out",
            ),
        ),
        scalars=(
            Scalar("eps", "f32", default=1e-6, low=0.0),
            Scalar("num_rows", "i32", default=batch, low=0, high=batch),
        ),
    )


def plan(params: ParamTable | None = None, **changes: Any) -> Any:
    """A plan with the fields that loading and launching read."""
    fields: dict[str, Any] = {
        "config": Query(heads=2, batch=8),
        "target": SimpleNamespace(name="sm_90a", major=9, minor=0),
        "entry": "query_h2_b8",
        "grid": (16, 1, 1),
        "cluster": 8,
        "threads": 288,
        "smem_bytes": 113936,
        "params": params or table(),
        "polling": 0,
    }
    made: Any = SimpleNamespace(**fields | changes)
    made.resident = partial(Plan.resident, made)
    return made


def cubin() -> Cubin:
    """A compiled kernel without code."""
    return Cubin(cubins.image(), "query_h2_b8", "sm_90a", "", cubins.RESOURCES, 0.0, waits=True)


def tensors(heads: int = 2, batch: int = 8, device: int = 0, **changes: Any) -> dict[str, Any]:
    """Right arguments of the query kernel as tensors, each in memory of its own."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "qkv": ((batch, 2112), "bfloat16"),
        "w_qa": ((1536,), "bfloat16"),
        "w_kva": ((512,), "bfloat16"),
        "w_qb": ((heads * 192, 1536), "bfloat16"),
        "w_uk": ((heads, 128, 512), "bfloat16"),
        "cache": ((4, 64, 576), "uint8"),
        "slots": ((batch,), "int64"),
        "q_scale_inv": ((), "float32"),
        "k_scale_inv": ((1,), "float32"),
        "out": ((batch, heads, 576), "float8_e4m3fn"),
    }
    made = {
        name: FakeTensor(shape, dtype, (index + 1) << 24, device=device)
        for index, (name, (shape, dtype)) in enumerate(shapes.items())
    }
    return made | changes


def install(monkeypatch: Any, **machine: Any) -> tuple[FakeCuda, FakeTorch]:
    """Put a fake driver and a fake torch in the place of the real ones for one test."""
    cuda, torch = FakeCuda(params_size=table().size, **machine), FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(arrays, "_loaded", {})
    for kind in list(arrays.READERS):
        monkeypatch.delitem(arrays.READERS, kind)
    monkeypatch.setattr(driver, "_driver", driver.Driver(cuda))
    return cuda, torch
