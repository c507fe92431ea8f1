"""One layer's kernel for any number of rows: the kernel is picked by the rows at hand."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from . import api, schema
from .errors import ConfigError
from .plan import plan
from .runtime.kernel import Kernel, Prepared
from .runtime.layouts import NUM_ROWS, refused
from .schema import Config

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Dispatch:
    """The kernels of a family for several batches, called as one.

    Iterating gives the configurations, which :func:`kgen.warmup` takes; :attr:`matrix` is the text
    of a file that ``kgen package`` and ``kgen coverage`` take.

    Parameters
    ----------
    kernel
        The family, such as ``query``.
    batches
        The largest rows of each kernel, rising; a call takes the smallest that holds its rows.
    arch
        The target; where None, as :func:`kgen.query` says.
    **fields
        All other fields of the family.

    Raises
    ------
    ConfigError
        Naming the field, the value received and what is allowed.

    Examples
    --------
    >>> query = kgen.Dispatch("query", heads=8, batches=(1, 8, 64))
    >>> query.warmup()
    >>> out = query(qkv, w_qa=w_qa, ...)  # of as many rows as qkv has
    """

    def __init__(
        self,
        kernel: str,
        *,
        batches: Iterable[int] = BATCHES,
        arch: str | None = None,
        **fields: Any,
    ) -> None:
        if "batch" in fields:
            raise ConfigError("batch", fields["batch"], "a dispatcher has batches, one or more")
        self.batches = tuple(batches)
        self.configs = tuple(schema.make(kernel, {**fields, "batch": b}) for b in self.batches)
        if not self.batches or any(a >= b for a, b in pairwise(self.batches)):
            raise ConfigError("batches", self.batches, "allowed is one size or more, each once, up")
        self._arch = arch or api.default_arch()
        self._kernels: dict[int, Kernel] = {}  # by place, once they were asked for
        arrays = plan(self.configs[-1], self._arch).params.arrays
        self._first = arrays[0].name
        rows = [axis.rows for axis in arrays[0].axes]
        self._axis = rows.index(True) if arrays[0].role == "in" else None
        self._outputs = tuple(array.name for array in arrays if array.role == "out")

    def kernel(self, rows: int) -> Kernel:
        """The kernel that serves ``rows`` rows; ArgumentError beyond the largest batch."""
        place = bisect_left(self.batches, rows)
        found = self._kernels.get(place)
        if found is None:
            if place == len(self.batches):
                allowed = f"at most {self.batches[-1]}, the largest batch"
                raise refused(NUM_ROWS, repr(rows), allowed)
            found = self._kernels[place] = api.kernel(self.configs[place], self._arch)
        return found

    def __call__(self, *array: Any, **arguments: Any) -> Any:
        """Launch the kernel of the rows at hand: ``num_rows``, or those of the first array.

        Takes, returns and raises what :meth:`kgen.Kernel.__call__` does.
        """
        rows = arguments.get(NUM_ROWS)
        if rows is None:
            rows = self._rows(array, arguments)
        return self.kernel(rows)(*array, **arguments)

    def bind(self, *array: Any, pdl: bool = True, **arguments: Any) -> Bound:
        """Check the arguments once for every batch that they have rows for; the result launches.

        Takes what a call takes, but for ``stream``. ``num_rows`` is the largest launch to come, by
        default of as many rows as the first array has. An output that is None is allocated once.
        """
        most = arguments.pop(NUM_ROWS, None)
        if most is None:
            most = min(self._rows(array, arguments), self.batches[-1])
        largest = self.kernel(most).bind(*array, pdl=pdl, **arguments, num_rows=most)
        outputs = largest.out if len(self._outputs) > 1 else (largest.out,)
        arguments |= zip(self._outputs, outputs, strict=False)
        sizes = [*self.batches[: bisect_left(self.batches, most)], most]
        prepared = [
            self.kernel(size).bind(*array, pdl=pdl, **arguments, num_rows=size)
            for size in sizes[:-1]
        ]
        return Bound(sizes, [*prepared, largest])

    def _rows(self, array: tuple[Any, ...], arguments: dict[str, Any]) -> int:
        """The rows of the first array."""
        if self._axis is None:
            allowed = f"a number: {self._first} holds more rows than a launch has"
            raise refused(NUM_ROWS, "nothing", allowed)
        if not array and self._first not in arguments:
            raise refused(self._first, "nothing", "an array")
        shape = getattr(array[0] if array else arguments[self._first], "shape", ())
        if len(shape) <= self._axis:
            raise refused(self._first, f"shape {tuple(shape)}", "an array with an axis of rows")
        return int(shape[self._axis])

    def warmup(self, devices: int | Iterable[int] = 0, jobs: int | None = None) -> None:
        """Build and load the kernels of all batches; see :func:`kgen.warmup`."""
        api.warmup(self.configs, arch=self._arch, devices=devices, jobs=jobs)

    @property
    def matrix(self) -> str:
        """The configurations as a table of a matrix file, TOML; several may follow one another."""
        fields = self.configs[0].model_dump(exclude_defaults=True) | {"batch": list(self.batches)}
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
        return f"[[{self.configs[0].kernel}]]\n{''.join(lines)}"

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def __repr__(self) -> str:
        return f"<kgen dispatch over {', '.join(config.slug for config in self.configs)}>"


class Bound:
    """Launches whose arguments were checked by :meth:`Dispatch.bind`, for any number of rows.

    Called with the number of rows, and a stream as :meth:`kgen.Kernel.__call__` takes it. ``out``
    holds all rows; those from the call's number on stay as they are.
    """

    def __init__(self, sizes: list[int], prepared: list[Prepared]) -> None:
        self.out = prepared[-1].out
        self._sizes, self._prepared = sizes, prepared
        self._by_rows: dict[int, Prepared] = dict(zip(sizes, prepared, strict=True))

    def __call__(self, rows: int, stream: Any = None) -> Any:
        """Launch for ``rows`` rows and return the output whole."""
        found = self._by_rows.get(rows)
        if found is None:
            found = self._by_rows[rows] = self._made(rows)
        return found(stream)

    def _made(self, rows: int) -> Prepared:
        if type(rows) is not int or not 0 <= rows <= self._sizes[-1]:
            allowed = f"an integer in 0..{self._sizes[-1]}, the rows that were bound"
            raise refused(NUM_ROWS, repr(rows), allowed)
        return self._prepared[bisect_left(self._sizes, rows)].of_rows(rows)
