"""Kernels timed on the GPU here by one method, beside their floors and a yardstick.

Weights are cold: sets of them that no L2 holds together take turns. Activations are warm: there is
one set. Programmatic launches are chained in one CUDA graph; a time is the median of its replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from ..api import default_arch, kernel
from ..compiler.nvrtc import nvrtc_build
from ..errors import DeviceError
from ..plan import ANY, Array, Axis, ParamTable
from ..runtime import nvml
from ..runtime.kernel import Kernel, Prepared
from ..schema import Config, refuse_ranks
from ..tables import aligned
from ..verify import samples
from . import uncached
from .baseline import yardstick

SETS = 24  # of weights, at least, where memory allows
STEPS = 96  # launches in a graph, at least
WARM_UPS = 3
PAGE = 64  # tokens a cache page
MEMORY_SHARE = 0.8  # of what is free

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """What the times were taken on, and when."""

    gpu: str
    driver: str
    cuda: str
    nvrtc: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.gpu}, driver {self.driver} (CUDA {self.cuda}), NVRTC {self.nvrtc}, {self.date}"
        )


@dataclass(frozen=True)
class Timing:
    """One kernel: microseconds a step, the floor that its bytes imply, and its weight sets."""

    slug: str
    arch: str
    schedule: str
    floor: float
    measured: float
    sets: int


@dataclass(frozen=True)
class Report:
    """The timings of one run; ``yardstick`` is the shortest dependent path of a step, in
    microseconds, timed in the same run."""

    machine: Machine
    replays: int
    yardstick: float
    timings: tuple[Timing, ...]

    def data(self) -> dict[str, Any]:
        """The report as JSON says it."""
        kernels = [
            asdict(timing) | {"of_floor": ratios[0], "of_yardstick": ratios[1]}
            for timing in self.timings
            for ratios in (self.ratios(timing),)
        ]
        return asdict(self) | {"unit": "microseconds a step", "timings": kernels}

    def ratios(self, timing: Timing) -> tuple[float, float]:
        """The measured time in floors and in yardsticks."""
        return timing.measured / timing.floor, timing.measured / self.yardstick

    def text(self) -> str:
        """The report for people."""
        head = (
            str(self.machine),
            f"µs a step: weights cold, activations warm, programmatic launches in one graph, median"
            f" of {self.replays} replays; yardstick {self.yardstick:.2f}",
        )
        columns = ("kernel", "schedule", "floor", "measured", "/ floor", "/ yardstick", "sets")
        return "\n".join((*head, "", aligned((columns, *map(self._row, self.timings)))))

    def _row(self, timing: Timing) -> tuple[str, ...]:
        numbers = (timing.floor, timing.measured, *self.ratios(timing))
        cells = (f"{number:.2f}" for number in numbers)
        return (timing.slug, timing.schedule, *cells, str(timing.sets))


def run(configs: Iterable[Config], *, replays: int = 30, arch: str | None = None) -> Report:
    """Time the kernels of ``configs``, and the yardstick, on the current GPU.

    Parameters
    ----------
    arch
        The target; where None, the setting ``KGEN_ARCH``, else that of the GPU here.

    Raises
    ------
    DeviceError
        When there is no GPU that kgen has a target for, or its memory is too small.
    ConfigError
        For a kernel that waits for other ranks.
    """
    configs = tuple(configs)
    for config in configs:
        refuse_ranks(config, "bench")
    nvml.require()
    name = arch or default_arch()
    reference, _ = measure(yardstick(name), replays)
    timings = tuple(_timing(kernel(config, name), replays) for config in configs)
    return Report(machine(), replays, reference, timings)


def machine() -> Machine:
    """The current GPU, its driver, the compiler and the date."""
    from datetime import UTC, datetime

    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    date = datetime.now(UTC).date().isoformat()
    return Machine(properties["name"].decode(), **nvml.driver(), nvrtc=nvrtc_build(), date=date)


def _timing(timed: Kernel, replays: int) -> Timing:
    plan = timed.plan
    measured, sets = measure(timed, replays)
    floor = plan.work.seconds * 1e6
    return Timing(
        plan.config.slug, plan.target.name, uncached.name(plan.schedule), floor, measured, sets
    )


def measure(timed: Kernel, replays: int, count: int | None = None) -> tuple[float, int]:
    """Microseconds a step of ``timed``, and the weight sets that took turns: ``count``, or as many
    as no L2 holds."""
    steps = bound_sets(timed, count=count)
    return graph_time(steps, replays), len(steps)


def bound_sets(
    timed: Kernel, given: Arrays | None = None, *, pdl: bool = True, count: int | None = None
) -> list[Prepared]:
    """A launch for each weight set; ``given`` takes the place of arguments made here."""
    sets = array_sets(timed.plan.params, count)
    return [timed.bind(**arrays | (given or {}), pdl=pdl) for arrays in sets]


def graph_time(steps: Sequence[Callable[[Any], Any]], replays: int) -> float:
    """Microseconds of one of ``steps``, which take turns in one graph; each launches on the stream
    that it is given."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        steps[0](stream)  # libraries set up what belongs to a stream
        stream.synchronize()
        stream.begin_capture()
        turns = ceil(STEPS / len(steps))
        for step in (*steps,) * turns:
            step(stream)
        graph = stream.end_capture()
    for _ in range(WARM_UPS):
        graph.launch(stream)
    times = [replay(graph, stream) for _ in range(replays)]
    return statistics.median(times) / (turns * len(steps)) * 1e3


def replay(graph: Any, stream: Any) -> float:
    """Milliseconds of one replay of ``graph`` on ``stream``."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    graph.launch(stream)
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end))


def device_arrays(table: ParamTable) -> Arrays:
    """Arguments for one step, arrays on the current GPU."""
    import cupy
    import numpy as np

    return {
        name: cupy.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in host_arguments(table).items()
    }


def host_arguments(table: ParamTable) -> Arrays:
    """Arrays for one step, and the numbers that have no default: columns of the packed row, which
    follow what it must hold."""
    import numpy as np

    rng = np.random.default_rng(0)
    arguments: Arrays = {array.name: _host(array, table, rng) for array in table.arrays}
    column = max((axis.extent for axis in table.arrays[0].axes if axis.at_least), default=0)
    for scalar in table.scalars:
        if scalar.default is None:
            arguments[scalar.name] = column
            column += scalar.columns
    return arguments


def array_sets(table: ParamTable, count: int | None = None) -> list[Arrays]:
    """Arguments for as many steps as there are weight sets; all else they share."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    arrays = device_arrays(table)
    weights = [array.name for array in table.arrays if is_weight(array)]
    size = sum(arrays[name].nbytes for name in weights)
    free, _ = cupy.cuda.Device().mem_info
    count = count or set_count(size, int(cupy.cuda.Device().attributes["L2CacheSize"]), free)
    copies = ({name: arrays[name].copy() for name in weights} for _ in range(count - 1))
    return [arrays, *(arrays | copy for copy in copies)]


def is_weight(array: Array) -> bool:
    """Whether ``array`` is read alone, and is not of the tokens."""
    return array.role == "in" and bool(array.axes) and not any(axis.rows for axis in array.axes)


def set_count(size: int, l2: int, free: int) -> int:
    """How many weight sets of ``size`` bytes take turns: more than twice ``l2`` together, and no
    fewer than :data:`SETS`, as far as ``free`` bytes carry.

    Raises
    ------
    DeviceError
        When the memory carries no second set.
    """
    if not size:
        return 1
    carried = 1 + int(MEMORY_SHARE * free) // size
    if carried < 2:
        raise DeviceError(f"memory: a second set of weights takes {size:,} bytes, {free:,} free")
    return min(carried, max(SETS, 2 * l2 // size + 1))


def _host(array: Array, table: ParamTable, rng: Any) -> Any:
    """Values for ``array``: small noise, distinct slots, ones or zeros, as its dtype asks."""
    import numpy as np

    rows = next(int(scalar.default or 0) for scalar in table.scalars if scalar.name == "num_rows")
    more = sum(scalar.columns for scalar in table.scalars)
    shape = tuple(_extent(axis, rows) + (more if axis.at_least else 0) for axis in array.axes)
    if array.dtype == "bf16":
        return samples.bf16(rng, *shape, scale=0.05)
    if array.dtype == "i64":
        return rng.permutation(_pages(rows) * PAGE)[:rows].astype(np.int64)
    plain = {"f32": (1, np.float32), "i32": (1, np.int32)}
    return np.full(shape, *plain.get(array.dtype, (0, np.uint8)))


def _extent(axis: Axis, rows: int) -> int:
    if axis.rows:
        return rows // axis.per
    if axis.extent == ANY:
        return PAGE if axis.size else _pages(rows)
    return axis.extent


def _pages(rows: int) -> int:
    return ceil(rows / PAGE) + 1
