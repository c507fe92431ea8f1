"""Which way W_UV goes: the value kernel, or a batched GEMM and then the gate kernel.

:data:`MEASURED` holds microseconds a step by the method of ``kgen bench``;
``benchmarks/value_bmm.py`` measures them again and prints the lines below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from . import nvml, settings
from .arch import target
from .schema import make


@dataclass(frozen=True)
class Measured:
    """Microseconds a step of both ways; ``gemm`` (with the gate) is None where nobody has timed
    it."""

    heads: int
    batch: int
    kernel: float
    gemm: float | None = None

    def distance(self, heads: int, batch: int) -> float:
        """How far this shape is from another, in factors."""
        return abs(log(heads / self.heads)) + abs(log(batch / self.batch))


# sm_90a: on an H200. The batched GEMM has been timed on no GPU yet.
MEASURED: dict[str, tuple[Measured, ...]] = {
    "sm_90a": (
        Measured(8, 1, 1.50),
        Measured(8, 16, 1.61),
        Measured(8, 64, 1.87),
        Measured(12, 1, 1.75),
        Measured(12, 16, 1.78),
        Measured(12, 64, 2.27),
    ),
}


def value_bmm(heads: int, batch: int, arch: str | None = None) -> bool:
    """Whether a batched GEMM and the ``gate`` kernel are faster than the ``value`` kernel.

    Read from a table of times, at the nearest shape that both ways were timed at. Where there is
    none, the answer is False: the value kernel. NOTE: so far that is everywhere, since the GEMM
    has not been timed; ``python benchmarks/value_bmm.py`` does so on the GPU at hand.

    Parameters
    ----------
    heads, batch
        Query heads of this rank, and token rows.
    arch
        The target, such as ``sm_90a``; where None, the setting ``KGEN_ARCH``, else that of the
        first GPU here that kgen has a target for, else sm_90a.

    Raises
    ------
    ConfigError
        When ``heads``, ``batch`` or ``arch`` is none that kgen has.

    Examples
    --------
    >>> way = kgen.gate if kgen.value_bmm(heads=8, batch=64) else kgen.value
    >>> kernel = way(heads=8, batch=64)
    """
    make("value", {"heads": heads, "batch": batch})
    name = target(arch or settings.ARCH.value() or nvml.default_arch()).name
    timed = [found for found in MEASURED.get(name, ()) if found.gemm is not None]
    if not timed:
        return False
    near = min(timed, key=lambda found: found.distance(heads, batch))
    return near.gemm is not None and near.gemm < near.kernel
