"""Which way W_UV goes: the value kernel, or a batched GEMM and then the gate kernel.

:data:`MEASURED` holds microseconds a step by the method of ``kgen bench``;
``benchmarks/value_bmm.py`` measures them again and prints the lines below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from ..targets import target
from .families import make


@dataclass(frozen=True)
class Measured:
    """Microseconds a step of both ways; ``gemm`` is with the gate."""

    heads: int
    batch: int
    kernel: float
    gemm: float

    def distance(self, heads: int, batch: int) -> float:
        """How far this shape is from another, in factors."""
        return abs(log(heads / self.heads)) + abs(log(batch / self.batch))


# sm_90a: on an H200, the GEMM by PyTorch 2.11.
MEASURED: dict[str, tuple[Measured, ...]] = {
    "sm_90a": (
        Measured(6, 1, 1.81, 4.80),
        Measured(6, 16, 1.83, 5.00),
        Measured(6, 64, 1.89, 5.12),
        Measured(6, 128, 2.19, 6.12),
        Measured(6, 256, 3.81, 6.28),
        Measured(8, 1, 2.16, 6.36),
        Measured(8, 16, 2.16, 5.95),
        Measured(8, 64, 2.34, 6.21),
        Measured(8, 128, 3.07, 6.31),
        Measured(8, 256, 4.23, 6.66),
        Measured(12, 1, 2.19, 5.96),
        Measured(12, 16, 2.19, 6.09),
        Measured(12, 64, 2.71, 6.29),
        Measured(12, 128, 4.00, 6.50),
        Measured(12, 256, 7.07, 6.99),
        Measured(16, 1, 2.25, 6.05),
        Measured(16, 16, 2.25, 6.12),
        Measured(16, 64, 3.17, 6.31),
        Measured(16, 128, 4.40, 6.66),
        Measured(16, 256, 8.46, 7.05),
    ),
}


def value_bmm(heads: int, batch: int, arch: str) -> bool:
    """Whether a batched GEMM and the ``gate`` kernel are faster than the ``value`` kernel.

    Read from a table of times, at the nearest shape there. For a target without times the answer is
    False, the value kernel; ``python benchmarks/value_bmm.py`` takes them on the GPU at hand.

    Parameters
    ----------
    heads, batch
        Query heads of this rank, and token rows.
    arch
        The target, such as ``sm_90a``.

    Raises
    ------
    ConfigError
        When ``heads``, ``batch`` or ``arch`` is none that kgen has.
    """
    make("value", {"heads": heads, "batch": batch})
    name = target(arch).name
    if not (timed := MEASURED.get(name)):
        return False
    near = min(timed, key=lambda found: found.distance(heads, batch))
    return near.gemm < near.kernel
