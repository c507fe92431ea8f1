from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from kgen.codegen.runtime import arrays
from kgen.codegen.runtime.arrays import HOST, view

from ...helpers.fakes import Dlpack, FakeCuda, FakeTensor, FakeTorch, Interface, install


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCuda, FakeTorch]]:
    yield install(monkeypatch, memory={0x5000: 1})


def layout(array: object) -> tuple[object, ...]:
    seen = view(array)
    return tuple(seen.library.layout(seen))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((1, 7), (7, 1))],
)
def test_packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert arrays.packed(shape) == strides


def test_torch_tensor() -> None:
    tensor = FakeTensor((3, 4), "float8_e4m3fn", 0x100, (16, 1), device=1)
    seen = view(tensor)
    assert (seen.pointer, seen.device, seen.library.name) == (0x100, 1, "torch")
    assert layout(tensor) == ("float8_e4m3fn", (3, 4), (16, 1))


def test_subclass_of_a_tensor_is_read_by_torch() -> None:
    class Parameter(FakeTensor):
        pass

    assert view(Parameter((3,), "bfloat16", 0x100)).library.name == "torch"


def test_cpu_tensor_is_host_memory() -> None:
    assert view(FakeTensor((3,), "bfloat16", 0x100, device=-1)).device == HOST


def cupy_array(shape: tuple[int, ...], dtype: str, offset: int = 0) -> object:
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0x4000, 1 << 20, None, 0), offset)
    return cupy.ndarray(shape, dtype, memptr=memory)


def test_cupy_array() -> None:
    array = cupy_array((4, 2112), "u2", offset=64)[:, :100]  # type: ignore[index]
    seen = view(array)
    assert (seen.pointer, seen.device, seen.library.name) == (0x4040, 0, "cupy")
    assert layout(array) == ("uint16", (4, 100), (2112, 1))


def test_cuda_array_interface() -> None:
    array = Interface((2, 3), "<f4", 0x5000, strides=(32, 4))
    assert view(array)[:2] == (0x5000, 1)
    assert layout(array) == ("float32", (2, 3), (8, 1))
    assert layout(Interface((2, 3), "|u1", 0x5000)) == ("uint8", (2, 3), (3, 1))


def test_cuda_array_interface_over_host_memory() -> None:
    assert view(Interface((2, 3), "<f4", 0x6000)).device == HOST


def test_dlpack() -> None:
    array = Dlpack((2, 3), (4, 16), 0x7000, strides=(8, 1), offset=32, device=(2, 1))
    assert view(array)[:2] == (0x7020, 1)
    assert layout(array) == ("bfloat16", (2, 3), (8, 1))
    assert layout(Dlpack((2, 3), (12, 8), 0x7000)) == ("float8_e5m2", (2, 3), (3, 1))
    assert layout(Dlpack((2,), (5, 64), 0x7000))[0] == "DLPack 5:64"


def test_dlpack_struct_is_48_bytes() -> None:
    assert ctypes.sizeof(arrays._DLTensor) == 48


def test_numpy_array_is_host_memory() -> None:
    assert view(np.zeros(3)).device == HOST


@pytest.mark.parametrize("value", [0.5, None, "x", [1, 2], np.float32(1)])
def test_what_is_no_array(value: object) -> None:
    with pytest.raises(AttributeError):
        view(value)


def test_torch_current_stream_is_asked_at_each_call(machine: tuple[FakeCuda, FakeTorch]) -> None:
    _, torch = machine
    library = view(FakeTensor((3,), "bfloat16", 0x100)).library
    assert (library.stream(0), library.stream(1)) == (0x70, 0x71)
    torch.current[0] = 0x99
    assert library.stream(0) == 0x99


def test_torch_allocates_on_the_device_for_the_stream(
    machine: tuple[FakeCuda, FakeTorch],
) -> None:
    _, torch = machine
    library = view(FakeTensor((3,), "bfloat16", 0x100)).library
    out = library.empty((2, 576), "e4m3", 1, 0x55)
    assert (out.shape, str(out.dtype), out.device) == ((2, 576), "torch.float8_e4m3fn", 1)
    assert torch.allocated == [(out, 0x55)]
