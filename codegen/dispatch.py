"""One layer's kernel for any number of rows: the kernel is picked by the rows at hand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from . import api, schema
from .errors import ArgumentError, ConfigError
from .plan import plan
from .runtime.kernel import Kernel, Prepared
from .runtime.layouts import NUM_ROWS
from .schema import Config

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Dispatch:
    """The kernels of a family for several batches, called as one.

    Iterating gives the configurations, which :func:`kgen.warmup` takes; :attr:`matrix` is the file
    that ``kgen package`` and ``kgen coverage`` take.

    Parameters
    ----------
    kernel
        The family, such as ``query``.
    batches
        The largest rows of each kernel; a call takes the smallest that holds its rows.
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
        sizes = sorted(set(batches))
        if not sizes:
            raise ConfigError("batches", (), "allowed is one size or more")
        made = [schema.make(kernel, {**fields, "batch": size}) for size in sizes]
        self.batches, self.configs = tuple(sizes), tuple(made)
        self._arch = arch
        first = plan(made[-1], arch or api.default_arch()).params.arrays[0]
        self._first = first.name
        self._axis = [axis.rows for axis in first.axes].index(True)

    def kernel(self, rows: int) -> Kernel:
        """The kernel that serves ``rows`` rows; ArgumentError beyond the largest batch."""
        return api.kernel(self.configs[self._place(rows)], self._arch)

    def _place(self, rows: int) -> int:
        place = bisect_left(self.batches, rows)
        if place == len(self.batches):
            largest = f"allowed are at most {self.batches[-1]}, the largest batch"
            raise ArgumentError(f"{NUM_ROWS}: got {rows}; {largest}")
        return place

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

        Takes what a call takes, but for ``stream`` and ``num_rows``; row arrays have the rows of
        the largest launch to come.
        """
        rows = min(self._rows(array, arguments), self.batches[-1])
        sizes = [min(size, rows) for size in self.batches[: self._place(rows) + 1]]
        prepared = [
            self.kernel(size).bind(*array, pdl=pdl, **{**arguments, NUM_ROWS: size})
            for size in sizes
        ]
        return Bound(sizes, prepared)

    def _rows(self, array: tuple[Any, ...], arguments: dict[str, Any]) -> int:
        """The rows of the first array."""
        if not array and self._first not in arguments:
            raise ArgumentError(f"{self._first}: got nothing; allowed is an array")
        shape = getattr(array[0] if array else arguments[self._first], "shape", ())
        if len(shape) <= self._axis:
            raise ArgumentError(f"{self._first}: got shape {tuple(shape)}; it has no axis of rows")
        return int(shape[self._axis])

    def warmup(self, devices: int | Iterable[int] = 0, jobs: int | None = None) -> None:
        """Build and load the kernels of all batches; see :func:`kgen.warmup`."""
        api.warmup(self.configs, arch=self._arch, devices=devices, jobs=jobs)

    @property
    def matrix(self) -> str:
        """The configurations as a matrix file, in TOML."""
        slugs = "".join(f'    "{config.slug}",\n' for config in self.configs)
        return f"slugs = [\n{slugs}]\n"

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
        if not 0 <= rows <= self._sizes[-1]:
            allowed = f"allowed is 0..{self._sizes[-1]}, as the arrays have"
            raise ArgumentError(f"{NUM_ROWS}: got {rows!r}; {allowed}")
        return self._prepared[bisect_left(self._sizes, rows)].of_rows(rows)
