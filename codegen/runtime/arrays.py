"""Arrays of any library, seen as pointer, device, dtype, shape and strides.

CuPy and PyTorch are read through their own attributes, which is fast; anything else through
``__cuda_array_interface__`` or DLPack. No library is imported that the caller's arrays do not
come from.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from . import driver

HOST = -1  # the device of memory that no GPU owns
NOWHERE = -2  # that of an address of 0


class Layout(NamedTuple):
    """What an array is, in words common to all libraries; strides count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[float, ...]


class ArrayView(NamedTuple):
    """An array as its library tells it: ``dtype`` and the unit of ``strides`` are the library's.

    That makes a view cheap to take; :meth:`Library.layout` translates, once per layout.
    """

    pointer: int
    device: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    library: Library


Fields: TypeAlias = "tuple[int, int, Any, tuple[int, ...], tuple[int, ...], Library]"
"""The fields of an :class:`ArrayView`, not yet made one: that would cost a call its time."""


class Library(Protocol):
    """What kgen asks of an array library."""

    name: str

    def read(self, array: Any) -> Fields:
        """What a view of ``array`` holds; AttributeError where it is no array."""

    def layout(self, view: ArrayView) -> Layout:
        """The layout of ``view``."""

    def stream(self, device: int) -> int:
        """The handle of the stream that is current for ``device`` in this thread."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """A new array of the logical ``dtype``, for use on ``stream`` (None: the current one)."""


READ_ONLY, MASKED, SWAPPED = "(read only)", "(masked)", "(another byte order)"  # after a dtype


def by_bytes(view: ArrayView) -> Layout:
    """The layout of a view whose dtype is NumPy's and whose strides count bytes."""
    size = view.dtype.itemsize
    strides = tuple(s / size if s % size else s // size for s in view.strides)
    return Layout(dtype_name(view.dtype), tuple(view.shape), strides)


def dtype_name(dtype: Any, *qualities: str) -> str:
    """The name of a NumPy dtype, and in words what keeps arrays of it from being used."""
    swapped = () if dtype.isnative else (SWAPPED,)
    return " ".join((dtype.name, *swapped, *qualities))


class Cupy:
    """CuPy arrays; 8- and 16-bit floats are allocated as unsigned integers."""

    name = "cupy"
    dtypes: ClassVar = {
        "bf16": "u2",
        "e4m3": "u1",
        "u8": "u1",
        "f32": "f4",
        "i32": "i4",
        "i64": "i8",
    }

    def __init__(self, module: Any) -> None:
        self._cupy = module
        self._current = module.cuda.get_current_stream

    def read(self, array: Any) -> Fields:
        data = array.data
        return data.ptr, data.device_id, array.dtype, array.shape, array.strides, self

    def layout(self, view: ArrayView) -> Layout:
        return by_bytes(view)

    def stream(self, device: int) -> int:
        return int(self._current(device).ptr)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        cuda = self._cupy.cuda
        with (
            cuda.Device(device),
            nullcontext() if stream is None else cuda.ExternalStream(stream, device),
        ):
            return self._cupy.empty(shape, self.dtypes[dtype])


class Torch:
    """PyTorch tensors."""

    name = "torch"
    dtypes: ClassVar = {
        "bf16": "bfloat16",
        "e4m3": "float8_e4m3fn",
        "u8": "uint8",
        "f32": "float32",
        "i32": "int32",
        "i64": "int64",
    }

    def __init__(self, module: Any) -> None:
        self._torch = module
        raw = getattr(module._C, "_cuda_getCurrentRawStream", None)
        self.stream: Callable[[int], int] = raw or self._current

    def _current(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def read(self, array: Any) -> Fields:
        device = array.get_device() if array.is_cuda else HOST
        return array.data_ptr(), device, array.dtype, array.shape, array.stride(), self

    def layout(self, view: ArrayView) -> Layout:
        return Layout(str(view.dtype).removeprefix("torch."), tuple(view.shape), view.strides)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        cuda = self._torch.cuda
        place = None if stream is None else cuda.ExternalStream(stream, device=device)
        with cuda.stream(place):
            kind = getattr(self._torch, self.dtypes[dtype])
            return self._torch.empty(shape, dtype=kind, device=f"cuda:{device}")


class Foreign:
    """Any object with ``__cuda_array_interface__`` or DLPack.

    ``produced`` is the stream that its arrays are written on, where they tell: a launch comes after
    that. Without, the current stream is unknown, and that of kgen is the legacy default stream.
    """

    name = "other"

    def __init__(self, produced: int | None = None) -> None:
        self.produced = produced

    def read(self, array: Any) -> Fields:
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            return _from_dlpack(array)
        import numpy as np

        dtype = np.dtype(interface["typestr"])
        shape = tuple(interface["shape"])
        strides = interface.get("strides")
        pointer, read_only = interface["data"]
        masked = (MASKED,) * (interface.get("mask") is not None)
        return ArrayView(
            pointer or 0,
            driver.get().device_of(pointer) if pointer else NOWHERE,
            dtype_name(dtype, *masked, *(READ_ONLY,) * bool(read_only)),
            shape,
            packed(shape) if strides is None else tuple(s // dtype.itemsize for s in strides),
            foreign(interface.get("stream")),
        )

    def layout(self, view: ArrayView) -> Layout:
        return Layout(view.dtype, view.shape, view.strides)

    def stream(self, device: int) -> int:
        return self.produced or 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        raise NotImplementedError


@cache
def foreign(produced: int | None) -> Foreign:
    """The library of foreign arrays that are written on the stream ``produced``."""
    return Foreign(produced) if produced else FOREIGN


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array of ``shape``."""
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape)])


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DL_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DL_LEGACY_STREAM = 1
_DL_DTYPES = {
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (2, 16): "float16",
    (2, 32): "float32",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
}


def _from_dlpack(array: Any) -> ArrayView:
    kind, ordinal = array.__dlpack_device__()
    if kind not in _DL_CUDA:
        return ArrayView(0, HOST, "", (), (), FOREIGN)
    capsule = array.__dlpack__(stream=_DL_LEGACY_STREAM)
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else packed(shape)
    dtype = _DL_DTYPES.get((tensor.code, tensor.bits), f"DLPack {tensor.code}:{tensor.bits}")
    if tensor.lanes != 1:
        dtype += f" (vectors of {tensor.lanes})"
    pointer = (tensor.data or 0) + tensor.byte_offset
    return ArrayView(pointer, int(ordinal), dtype, shape, strides, foreign(_DL_LEGACY_STREAM))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)

FOREIGN = Foreign()
_LIBRARIES: dict[str, Callable[[Any], Library]] = {"cupy": Cupy, "torch": Torch}
_loaded: dict[str, Library] = {}

# Exact type -> its reader: filled by `reader`, looked up by the fast path.
READERS: dict[type, Callable[[Any], Fields]] = {}


def reader(kind: type) -> Callable[[Any], Fields]:
    """What reads arrays of the type ``kind``, remembered in :data:`READERS`."""
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    name = next((root for root in roots if root in _LIBRARIES), "")
    if name and name not in _loaded:
        _loaded[name] = _LIBRARIES[name](sys.modules[name])
    return READERS.setdefault(kind, _loaded.get(name, FOREIGN).read)


def view(array: Any) -> ArrayView:
    """A view of ``array``, from CuPy, PyTorch, ``__cuda_array_interface__`` or DLPack.

    Raises
    ------
    AttributeError
        When ``array`` is no array.
    """
    return ArrayView(*(READERS.get(type(array)) or reader(type(array)))(array))
