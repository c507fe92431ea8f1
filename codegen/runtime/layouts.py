"""The right layouts of an array argument, as its entry in the parameter table says.

A layout that was found right is remembered, so that the next array of the same dtype, shape and
strides costs one look-up.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..plan import ANY, Array, Axis
from .arrays import HOST, READ_ONLY, ArrayView, Layout

NUM_ROWS = "num_rows"

ACCEPTED = {
    "bf16": ("bfloat16", "uint16"),
    "e4m3": ("float8_e4m3fn", "uint8"),
    "u8": ("uint8", "float8_e4m3fn"),
    "f32": ("float32",),
    "i32": ("int32",),
    "i64": ("int64",),
}

_REMEMBERED = 256  # layouts an argument; more than that are forgotten together


class Facts(NamedTuple):
    """What a right layout implies. Sizes are bytes: ``span`` of the whole array, ``pitch`` from
    one item of the outermost axis to the next, ``body`` of one such item."""

    fields: tuple[int, ...]
    rows: int
    span: int
    pitch: int
    body: int


class ArrayRule:
    """The checks of one array argument, derived from its entry in the table."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.name, self.dtype = array.name, array.dtype
        self.output = array.role == "out"
        self.of_step = array.role != "inout" and any(axis.rows for axis in array.axes)
        self.mask = array.align - 1
        self.fields = [array.name]
        for axis in array.axes:
            self.fields += [field for field in (axis.stride, axis.size) if field]
        self.known: dict[tuple[Any, ...], Facts] = {}

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape of an output for ``rows`` rows."""
        return tuple(rows if axis.rows else axis.extent for axis in self.array.axes)

    def examine(self, view: ArrayView) -> Facts:
        """What the layout of ``view`` implies, remembered; ArgumentError where it is wrong."""
        if view.device < 0:
            raise self._nowhere(view)
        layout = view.library.layout(view)
        self._check_dtype(layout.dtype)
        facts = self._scalar(layout) if self.array.scalar else self._strided(layout)
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known[view.dtype, view.shape, view.strides] = facts
        return facts

    def _check_dtype(self, dtype: str) -> None:
        accepted = ACCEPTED[self.dtype]
        name, _, quality = dtype.partition(" ")
        if name in accepted and quality in ("", READ_ONLY * (self.array.role == "in")):
            return
        note = ""
        if dtype.startswith("float8"):
            note = f" ({dtype} is another FP8 format: its bytes mean other values)"
        raise self._refuse(f"dtype {dtype}", f"{' or '.join(accepted)}{note}")

    def _scalar(self, layout: Layout) -> Facts:
        if layout.shape not in ((), (1,)):
            raise self._refuse(f"shape {layout.shape}", "one element, of shape () or (1,)")
        size = self.array.itemsize
        return Facts((), sys.maxsize, size, size, size)

    def _strided(self, layout: Layout) -> Facts:
        axes = self.array.axes
        if self.array.swapped:
            layout = _unswapped(layout, axes)
        fits = len(layout.shape) == len(axes) and all(map(_fits, axes, layout.shape))
        if not fits:
            allowed = ", ".join(map(_extent, axes))
            raise self._refuse(
                f"shape {layout.shape}", f"({allowed}{',' if len(axes) == 1 else ''})"
            )
        strides = self._strides(layout)
        fields: list[int] = []
        for axis, extent, stride in zip(axes, layout.shape, strides, strict=True):
            fields += [stride] if axis.stride else []
            fields += [extent] if axis.size else []
        rows = next(
            (n * a.per for a, n in zip(axes, layout.shape, strict=True) if a.rows), sys.maxsize
        )
        last = [s * (n - 1) for s, n in zip(strides, layout.shape, strict=True)]
        size = self.array.itemsize
        empty = 0 in layout.shape
        return Facts(
            fields=tuple(fields),
            rows=rows,
            span=0 if empty else (sum(last) + 1) * size,
            pitch=strides[0] * size,
            body=0 if empty else (sum(last[1:]) + 1) * size,
        )

    def _strides(self, layout: Layout) -> list[int]:
        """Strides in elements; an axis of extent 0 or 1 has that of a packed one, and so has every
        axis of an empty array."""
        strides: list[int] = []
        inner = 1
        empty = 0 in layout.shape
        for axis, extent, stride in zip(
            reversed(self.array.axes),
            reversed(layout.shape),
            reversed(layout.strides),
            strict=True,
        ):
            free = empty or extent <= 1
            if not free and not self._stride_fits(axis, stride, inner):
                raise self._refuse(
                    f"strides {tuple(layout.strides)} (elements) of shape {layout.shape}",
                    self._stride_words(),
                )
            strides.insert(0, inner if free else int(stride))
            inner = strides[0] * max(extent, 1)
        return strides

    def _stride_fits(self, axis: Axis, stride: float, inner: int) -> bool:
        if axis.stride is None:
            return stride == inner
        low = 0 if self.array.role == "in" else inner
        return stride >= low and stride % (self.array.align // self.array.itemsize) == 0

    def _stride_words(self) -> str:
        multiple = self.array.align // self.array.itemsize
        free = f"a multiple of {multiple}" + ("" if self.array.role == "in" else ", no overlap")
        words = [free if axis.stride else "packed" for axis in self.array.axes]
        return f"({'; '.join(words)})"

    def misplaced(
        self, view: ArrayView, facts: Facts, leader: str, device: int, rows: int
    ) -> ArgumentError:
        """The error for a right layout with a wrong pointer, device or number of rows."""
        if view.device < 0:
            return self._nowhere(view)
        if view.device != device:
            return self._refuse(
                f"an array on cuda:{view.device}", f"one on cuda:{device}, where {leader} is"
            )
        if view.pointer & self.mask:
            return self._refuse(
                f"the address {view.pointer:#x}", f"a multiple of {self.mask + 1} bytes"
            )
        return self._refuse(
            f"shape {tuple(view.shape)}, which holds {facts.rows} rows",
            f"at least {NUM_ROWS}, which is {rows}; pass {NUM_ROWS} for fewer",
        )

    def _nowhere(self, view: ArrayView) -> ArgumentError:
        where = "memory of the CPU" if view.device == HOST else "no memory, the address is 0"
        return self._refuse(where, "an array on a GPU")

    def no_array(self, value: Any, problem: Exception) -> ArgumentError:
        """The error for what is no array at all, or one without memory, such as a fake tensor."""
        why = "" if isinstance(problem, AttributeError) else f" ({problem!s:.80})"
        return self._refuse(
            f"{type(value).__name__} {value!r:.60}{why}",
            f"a {ACCEPTED[self.dtype][0]} array on a GPU (CuPy, PyTorch,"
            " __cuda_array_interface__ or DLPack)",
        )

    def _refuse(self, received: str, allowed: str) -> ArgumentError:
        return refused(self.name, received, allowed)


def refused(name: str, received: str, allowed: str) -> ArgumentError:
    """The error of the argument ``name``."""
    return ArgumentError(f"{name}: got {received}; allowed is {allowed}")


def _unswapped(layout: Layout, axes: tuple[Axis, ...]) -> Layout:
    """``layout``, its last two axes swapped back if that is how the memory is packed."""
    *outer, rows, columns = range(len(axes))
    if len(layout.shape) != len(axes) or layout.strides[rows] != 1:
        return layout
    order = (*outer, columns, rows)
    return layout._replace(
        shape=tuple(layout.shape[i] for i in order),
        strides=tuple(layout.strides[i] for i in order),
    )


def _fits(axis: Axis, extent: int) -> bool:
    if axis.size and not 1 <= extent < 2**31:
        return False
    if axis.extent == ANY or axis.rows:
        return True
    return extent >= axis.extent if axis.at_least else extent == axis.extent


def _extent(axis: Axis) -> str:
    if axis.rows:
        return NUM_ROWS
    if axis.extent == ANY:
        return "1 or more" if axis.size else "any"
    return f"{axis.extent} or more" if axis.at_least else str(axis.extent)
