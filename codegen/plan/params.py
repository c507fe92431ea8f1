"""The parameter table of a kernel: one list from which all that touches parameters is derived.

The C++ struct with its size, the host packing, the argument checks and the documentation of
the call all read the same :class:`ParamTable`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..dims import PACKED, Q_LORA

ANY = -1  # an axis whose extent is free

# Logical dtype -> (C++ element type, itemsize in bytes)
DTYPES: dict[str, tuple[str, int]] = {
    "bf16": ("bf16", 2),
    "e4m3": ("e4m3", 1),
    "u8": ("uint8_t", 1),
    "f32": ("float", 4),
    "i32": ("int32_t", 4),
    "i64": ("int64_t", 8),
}


def itemsize(dtype: str) -> int:
    """Bytes of an element of the logical ``dtype``."""
    return DTYPES[dtype][1]


@dataclass(frozen=True)
class Axis:
    """One axis of an array argument.

    ``extent`` is exact, or with ``at_least`` a lower bound, or :data:`ANY`. ``rows`` marks the
    token axis: it must hold at least ``num_rows``. ``stride`` names the run-time parameter that
    carries this axis' stride in elements; without one the axis must be packed against the next.
    ``size`` names the run-time parameter that carries the extent. With ``per`` one element serves
    that many rows. ``label`` tells, in the source, of an extent that machine code does not know.
    """

    extent: int = ANY
    at_least: bool = False
    rows: bool = False
    stride: str | None = None
    size: str | None = None
    per: int = 1
    label: str = ""


@dataclass(frozen=True)
class Array:
    """An array argument: ``role`` is ``in``, ``out`` or ``inout``; ``scalar`` means one element
    of shape () or (1,) in device memory. With ``swapped`` a view whose last two axes are swapped
    is accepted too: the memory is the same."""

    name: str
    dtype: str
    axes: tuple[Axis, ...] = ()
    role: Literal["in", "out", "inout"] = "in"
    align: int = 16
    doc: str = ""
    swapped: bool = False

    @property
    def scalar(self) -> bool:
        return not self.axes

    @property
    def type(self) -> str:
        """dtype and shape in a word, ``bf16[num_rows, 8, 576]``."""
        return f"{self.dtype}[{', '.join(map(extent_text, self.axes))}]"

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)


@dataclass(frozen=True)
class Scalar:
    """A by-value argument with an optional default and an inclusive range.

    With ``columns`` it is the offset, in elements, of that many columns in the rows of the first
    array; ``multiple`` is what it must divide by.
    """

    name: str
    dtype: Literal["f32", "i32", "i64"]
    default: float | int | None = None
    low: float | int | None = None
    high: float | int | None = None
    doc: str = ""
    columns: int = 0
    multiple: int = 1

    @property
    def type(self) -> str:
        return self.dtype


def num_rows(batch: int) -> Scalar:
    """How many token rows a launch has."""
    return Scalar("num_rows", "i32", default=batch, low=0, high=batch, doc="token rows")


def packed_row() -> Array:
    """The packed projection row that the query kernels read."""
    return Array(
        "qkv",
        "bf16",
        (Axis(rows=True, stride="qkv_stride"), Axis(PACKED, at_least=True)),
        doc="packed projection rows: q_a, kv_a, k_pe, what follows",
    )


def q_c_rows() -> Array:
    """The normalised q_a rows, an output."""
    return Array(
        "q_c",
        "bf16",
        (Axis(rows=True, stride="q_c_stride"), Axis(Q_LORA)),
        role="out",
        doc="normalised q_a rows",
    )


def step_scalars(batch: int) -> tuple[Scalar, Scalar]:
    """What every kernel takes by value."""
    return (
        Scalar("eps", "f32", default=1e-6, low=0.0, doc="of the RMSNorms"),
        num_rows(batch),
    )


@dataclass(frozen=True)
class Field:
    """One member of the C++ struct: ``ctype name;`` packed with the :mod:`struct` ``code``."""

    name: str
    ctype: str
    code: str
    size: int
    comment: str = ""


_CODES = {"f32": "f", "i32": "i", "i64": "q"}


@dataclass(frozen=True)
class ParamTable:
    """Array and by-value arguments of one kernel, in the order of its struct."""

    arrays: tuple[Array, ...]
    scalars: tuple[Scalar, ...]

    def __iter__(self) -> Iterator[Array | Scalar]:
        yield from self.arrays
        yield from self.scalars

    @property
    def names(self) -> tuple[str, ...]:
        """Keyword names of the call."""
        return tuple(item.name for item in self)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Members of the struct: pointers, then 8-byte strides, then the rest by falling size,
        so that there is no padding inside."""
        return tuple(
            sorted(
                (*self._pointers(), *self._shape_fields(), *self._values()), key=lambda f: -f.size
            )
        )

    def _pointers(self) -> Iterable[Field]:
        for array in self.arrays:
            const = "const " if array.role == "in" else ""
            shape = ", ".join(axis.label or extent_text(axis) for axis in array.axes)
            yield Field(array.name, f"{const}{DTYPES[array.dtype][0]}*", "Q", 8, f"[{shape}]")

    def _shape_fields(self) -> Iterable[Field]:
        for array in self.arrays:
            for axis in array.axes:
                if axis.stride:
                    yield Field(axis.stride, "int64_t", "q", 8, f"elements, {array.name}")
                if axis.size:
                    yield Field(axis.size, "int32_t", "i", 4, f"extent, {array.name}")

    def _values(self) -> Iterable[Field]:
        for value in self.scalars:
            ctype, size = DTYPES[value.dtype]
            yield Field(value.name, ctype, _CODES[value.dtype], size, value.doc)

    @property
    def format(self) -> str:
        """:mod:`struct` format of the packed struct, tail padding to 8 bytes included."""
        body = "<" + "".join(field.code for field in self.fields)
        return body + "x" * (-struct.calcsize(body) % 8)

    @property
    def size(self) -> int:
        """``sizeof`` the C++ struct, in bytes."""
        return struct.calcsize(self.format)

    def offset(self, name: str) -> int:
        """Where the member ``name`` lies in the struct, in bytes."""
        names = [field.name for field in self.fields]
        return sum(field.size for field in self.fields[: names.index(name)])

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The struct's bytes; ``values`` maps every field name to its pointer or number."""
        return struct.pack(self.format, *(values[field.name] for field in self.fields))


def extent_text(axis: Axis) -> str:
    """The extent of ``axis`` in a word."""
    if axis.rows:
        return "num_rows"
    if axis.extent == ANY:
        return axis.size or "any"
    return f">={axis.extent}" if axis.at_least else str(axis.extent)
