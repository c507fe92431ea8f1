from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kgen.codegen.errors import ArgumentError
from kgen.codegen.runtime import streams
from kgen.codegen.runtime.arrays import FOREIGN, Library


def library(name: str, stream: int) -> Any:
    return SimpleNamespace(name=name, stream=lambda device: stream)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (0x70, 0x70),
        (SimpleNamespace(cuda_stream=0x71), 0x71),
        (SimpleNamespace(ptr=0x72), 0x72),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 0x73)), 0x73),
    ],
)
def test_handle(stream: Any, handle: int) -> None:
    assert streams.handle(stream) == handle


@pytest.mark.parametrize("stream", [-1, True, 1.5, "x", object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(ArgumentError, match=r"stream: got .*; allowed is a stream of CuPy"):
        streams.handle(stream)


def test_stream_of_another_device() -> None:
    for stream in (SimpleNamespace(device_index=1), SimpleNamespace(device_id=1)):
        streams.check_device(stream, 1)
        with pytest.raises(ArgumentError, match="stream: got one of cuda:1; allowed is one of cud"):
            streams.check_device(stream, 0)
    for anywhere in (SimpleNamespace(device_id=-1), 5):
        streams.check_device(anywhere, 0)


@pytest.mark.parametrize(
    ("libraries", "handle"),
    [
        ([library("torch", 5)], 5),
        ([FOREIGN], 0),
        ([FOREIGN, library("torch", 5)], 5),
        ([library("cupy", 5), library("torch", 5)], 5),
    ],
)
def test_current(libraries: list[Library], handle: int) -> None:
    assert streams.current(libraries, 0) == handle


def test_libraries_that_disagree_need_a_stream() -> None:
    with pytest.raises(ArgumentError, match="current streams of cupy and torch differ"):
        streams.current([library("cupy", 0), library("torch", 5)], 0)
