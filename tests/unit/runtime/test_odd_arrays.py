"""Arrays that look right and are not: refused by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kgen.codegen.errors import ArgumentError
from kgen.codegen.plan import Array, Axis
from kgen.codegen.runtime import driver
from kgen.codegen.runtime.arrays import FOREIGN, ArrayView, view
from kgen.codegen.runtime.layouts import ArrayRule

IN, OUT = (ArrayRule(Array("x", "bf16", (Axis(8),), role=role)) for role in ("in", "out"))


class Interface:
    """An object with ``__cuda_array_interface__``."""

    def __init__(self, **changed: Any) -> None:
        facts = {"shape": (8,), "typestr": "<u2", "data": (4096, False), "version": 3}
        self.__cuda_array_interface__ = facts | changed


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def device_of(self, pointer: int) -> int:
            return 0 if pointer else -1

    monkeypatch.setattr(driver, "get", Driver)


def seen(**changed: Any) -> ArrayView:
    return view(Interface(**changed))


def test_a_plain_one_is_right_for_both() -> None:
    assert IN.examine(seen()) == OUT.examine(seen())


def test_a_read_only_array_is_an_input() -> None:
    assert IN.examine(seen(data=(4096, True)))
    with pytest.raises(ArgumentError, match=re.escape("x: got dtype uint16 (read only)")):
        OUT.examine(seen(data=(4096, True)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mask": object()}, "dtype uint16 (masked)"),
        ({"typestr": ">u2"}, "dtype uint16 (another byte order)"),
        ({"data": (0, False)}, "no memory, the address is 0"),
        ({"typestr": "<i2"}, "dtype int16"),
    ],
)
def test_it_is_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"x: got {said}")):
        IN.examine(seen(**changed))


def test_the_stream_of_an_array_is_kept() -> None:
    assert seen().library is FOREIGN
    library = seen(stream=77).library
    assert library.stream(0) == 77 and library is seen(stream=77).library


def test_a_tensor_without_memory_is_no_array() -> None:
    class Fake:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("no storage")

    with pytest.raises(RuntimeError):
        view(Fake())
    assert "no storage" in str(IN.no_array(Fake(), RuntimeError("no storage")))


def test_numpy_arrays_of_another_byte_order_are_refused_on_the_cpu_too() -> None:
    from kgen.codegen.emulator.kernel import NUMPY, Held

    swapped = ArrayView(*NUMPY.read(Held(np.zeros(8, ">u2"))))
    with pytest.raises(ArgumentError, match="another byte order"):
        IN.examine(swapped)
