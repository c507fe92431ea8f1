"""The arguments of a call: checked against the parameter table, packed into its struct."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..plan import Array, ParamTable, Scalar
from .arrays import HOST, READERS, ArrayView, Library, reader
from .layouts import NUM_ROWS, ArrayRule, Facts, refused

_FLOAT_MAX = 3.4028234663852886e38


class Call(NamedTuple):
    """Checked arguments: the parameter struct, and where to launch it. ``libraries`` are those
    that the arrays come from, the first array's first."""

    packed: bytes
    rows: int
    device: int
    libraries: tuple[Library, ...]
    outputs: tuple[Any, ...]


class Arguments:
    """Checks and packs the arguments of one kernel."""

    def __init__(self, table: ParamTable) -> None:
        self.names = table.names
        self._known = frozenset(table.names)
        self._scalars = tuple((scalar.name, scalar.default, scalar) for scalar in table.scalars)
        self._rows = [value.name for value in table.scalars].index(NUM_ROWS)
        self._offsets = tuple((i, s) for i, s in enumerate(table.scalars) if s.columns)
        self._rules = tuple(ArrayRule(array) for array in table.arrays)
        self._follows = self._rules[0].of_step
        self._steps = tuple((rule, rule.name, rule.known, rule.mask) for rule in self._rules)
        self._outputs = tuple(i for i, rule in enumerate(self._rules) if rule.output)
        self._pairs = tuple(_pairs(table.arrays))
        order = [field for rule in self._rules for field in rule.fields]
        order += [scalar.name for scalar in table.scalars]
        self._order = operator.itemgetter(*(order.index(field.name) for field in table.fields))
        self._pack = struct.Struct(table.format).pack

    def check(self, given: Mapping[str, Any], stream: int | None = None) -> Call:
        """``given`` by name, checked; an output that is None is allocated for ``stream``.

        Raises
        ------
        ArgumentError
            Naming the argument, what was received and what is allowed.
        """
        if not given.keys() <= self._known:
            raise self._unknown(given)
        scalars = self._numbers(given)
        rows: Any = scalars[self._rows]
        follow = self._follows and given.get(NUM_ROWS) is None  # rows are those of the row arrays
        values: list[Any] = []
        arrays: list[Any] = []
        seen: list[tuple[int, Facts]] = []
        libraries: list[Library] = []
        home = HOST
        for rule, name, known, mask in self._steps:
            array = given.get(name)
            if array is None:
                array = self._absent(rule, given, rows, home, libraries, stream)
            try:
                view = (READERS.get(type(array)) or reader(type(array)))(array)
            except (AttributeError, RuntimeError, TypeError, ValueError) as error:
                raise rule.no_array(array, error) from None
            pointer, device, dtype, shape, strides, library = view
            facts = known.get((dtype, shape, strides)) or rule.examine(ArrayView(*view))
            if library not in libraries:
                home = home if libraries else device
                libraries.append(library)
            fields, length, _, _, _ = facts
            if follow and rule.of_step and length != rows:
                rows = self._agreed(rule, ArrayView(*view), length, rows, first=not values)
            if device != home or device < 0 or pointer & mask or length < rows:
                raise rule.misplaced(ArrayView(*view), facts, self.names[0], home, rows)
            values.append(pointer)
            values += fields
            arrays.append(array)
            seen.append((pointer, facts))
        self._apart(seen)
        if self._offsets:
            self._inside(scalars, seen[0][1].body // self._rules[0].array.itemsize)
        scalars[self._rows] = rows
        values += scalars
        packed = self._pack(*self._order(values))
        return Call(packed, rows, home, tuple(libraries), tuple([arrays[i] for i in self._outputs]))

    def named(self, array: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        """``arguments`` and the first array, which alone may come by position."""
        first = self.names[0]
        if array:
            if len(array) > 1 or first in arguments:
                raise ArgumentError(
                    f"{first}: got {len(array)} arguments by position"
                    f"{' and one by name' if first in arguments else ''}; allowed is one,"
                    f" {first}; all others go by name"
                )
            arguments[first] = array[0]
        return arguments

    def _agreed(self, rule: ArrayRule, view: ArrayView, length: int, rows: int, first: bool) -> int:
        """The rows of a call that gives none: those of the first array, as all others have."""
        if first and length <= rows:
            return length
        most = f"at most {rows}, the kernel's batch"
        allowed = most if first else f"{rows}, as {self.names[0]} has; or pass {NUM_ROWS}"
        raise refused(rule.name, f"shape {tuple(view.shape)}, which holds {length} rows", allowed)

    def _numbers(self, given: Mapping[str, Any]) -> list[int | float]:
        return [
            default
            if (value := given.get(name)) is None and default is not None
            else _number(scalar, value)
            for name, default, scalar in self._scalars
        ]

    def _absent(
        self,
        rule: ArrayRule,
        given: Mapping[str, Any],
        rows: int,
        device: int,
        libraries: list[Library],
        stream: int | None,
    ) -> Any:
        needed = [r.name for r in self._rules if not r.output and given.get(r.name) is None]
        if needed:
            allowed = f"an array each: the call takes {', '.join(self.names)}"
            raise refused(", ".join(needed), "nothing", allowed)
        try:
            return libraries[0].empty(rule.shape(rows), rule.dtype, device, stream)
        except NotImplementedError:
            allowed = "an array: outputs are made only where the first array is CuPy's or PyTorch's"
            raise refused(rule.name, "nothing", allowed) from None

    def _apart(self, seen: list[tuple[int, Facts]]) -> None:
        """Refuse a written array that shares bytes with another that launches change."""
        for written, other in self._pairs:
            start, facts = seen[written]
            low, others = seen[other]
            if low < start + facts[2] and start < low + others[2]:
                if _interleaved(low - start, facts, others):
                    continue
                allowed = "memory of its own"
                raise refused(
                    self.names[written], f"memory that {self.names[other]} uses too", allowed
                )

    def _inside(self, scalars: Sequence[int | float], width: int) -> None:
        """Refuse an offset whose columns do not lie in the rows of the first array."""
        for i, scalar in self._offsets:
            last = width - scalar.columns
            if scalars[i] > last or scalars[i] % scalar.multiple:
                allowed = f"a multiple of {scalar.multiple} in 0..{last}"
                which = f"; {self.names[0]} has {width} columns"
                raise refused(scalar.name, repr(scalars[i]), allowed + which)

    def _unknown(self, given: Mapping[str, Any]) -> ArgumentError:
        name = next(name for name in given if name not in self._known)
        near = difflib.get_close_matches(name, self.names, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        return ArgumentError(
            f"{name}: unknown argument; {hint}the call takes {', '.join(self.names)}"
        )


def _pairs(arrays: Sequence[Array]) -> Iterator[tuple[int, int]]:
    """Which arrays must not overlap: one that is written, and one of a token each or written.

    Weights are left out: they are many, and no caller keeps them in a buffer of activations.
    """
    moving = [a.role != "in" or any(axis.rows for axis in a.axes) for a in arrays]
    for written, array in enumerate(arrays):
        for other, theirs in enumerate(arrays):
            once = theirs.role == "in" or other < written
            if array.role != "in" and moving[other] and once and other != written:
                yield written, other


def _number(scalar: Scalar, value: Any) -> int | float:
    number = value if type(value) in (int, float) else _plain(value)
    if type(number) is not int and scalar.dtype != "f32":
        raise refused(scalar.name, repr(value), _range(scalar))
    low = -_FLOAT_MAX if scalar.low is None else scalar.low
    high = _FLOAT_MAX if scalar.high is None else scalar.high
    if number is None or not low <= number <= high:
        raise refused(scalar.name, repr(value), _range(scalar))
    return number


def _plain(value: Any) -> int | float | None:
    """A number of another type, such as NumPy's; None where it is none, or a bool."""
    if type(value) is bool or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _range(scalar: Scalar) -> str:
    kind = "a finite number" if scalar.dtype == "f32" else "an integer"
    if scalar.low is None and scalar.high is None:
        return kind
    if scalar.high is None:
        return f"{kind} of {scalar.low} or more"
    low = -math.inf if scalar.low is None else scalar.low
    return f"{kind} in {low}..{scalar.high}"


def _interleaved(offset: int, a: Facts, b: Facts) -> bool:
    """Whether items of ``b``, ``offset`` bytes after those of ``a``, lie in the gaps of ``a``."""
    if a.pitch != b.pitch or a.pitch <= 0:
        return False
    offset %= a.pitch
    return offset >= a.body and offset + b.body <= a.pitch
