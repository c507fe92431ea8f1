"""Streams of any library as driver handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError
from . import driver
from .arrays import FOREIGN, Foreign, Library

LEGACY_DEFAULT = 0


def handle(stream: Any) -> int:
    """The handle of a stream of CuPy, PyTorch or cuda.core; an integer is one already.

    Raises
    ------
    ArgumentError
        When ``stream`` is none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        value = getattr(stream, name, None)
        if isinstance(value, int):
            return value
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise ArgumentError(
        f"stream: got {stream!r}; allowed is a stream of CuPy, PyTorch or cuda.core, the handle of"
        " one as an integer, or None for the current one"
    )


def check_device(stream: Any, device: int) -> None:
    """ArgumentError when ``stream`` knows its device and that is not ``device``."""
    place = getattr(stream, "device_index", getattr(stream, "device_id", None))
    if isinstance(place, int) and place >= 0 and place != device:
        raise ArgumentError(
            f"stream: got one of cuda:{place}; allowed is one of cuda:{device}, as the arrays are"
        )


def current(libraries: Sequence[Library], device: int) -> int:
    """The stream that is current for ``device`` in the libraries that the arrays come from.

    Raises
    ------
    ArgumentError
        When these differ: which of them orders the launch after the arrays' work is unknown.
    """
    if len(libraries) == 1:
        return libraries[0].stream(device)
    known = [
        (library.name, library.stream(device)) for library in libraries if library is not FOREIGN
    ]
    if len({stream for _, stream in known}) > 1:
        names = " and ".join(name for name, _ in known)
        raise ArgumentError(
            f"stream: got None while the current streams of {names} differ; allowed is one given"
        )
    return known[0][1] if known else LEGACY_DEFAULT


def after_producers(libraries: Sequence[Library], stream: int) -> None:
    """Let what follows on ``stream`` come after what foreign arrays say they are written on."""
    for library in libraries:
        if isinstance(library, Foreign) and library.produced not in (None, stream):
            driver.get().order(int(library.produced or 0), stream)
