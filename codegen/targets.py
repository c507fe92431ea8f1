"""The compile targets as data: what each one has, and what it has not."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import TargetError


@dataclass(frozen=True)
class Target:
    """One NVRTC target and the limits that plans are made against.

    Sizes are bytes. ``smem_per_sm`` is what all resident blocks share, of which the driver
    keeps ``SMEM_RESERVED`` a block. Source: CUDA C++ Programming Guide, table of technical
    specifications per compute capability.
    """

    name: str
    major: int
    minor: int
    smem_per_block: int
    smem_per_sm: int
    regs_per_sm: int
    bandwidth: float  # bytes/s that a copy reaches (measured on sm_90a, else the datasheet's)
    flops: float  # dense BF16 FLOP/s, datasheet
    multimem: bool  # stores to multicast addresses
    wgmma: bool  # asynchronous MMAs of a warpgroup


SMEM_RESERVED = 1024

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("sm_90a", 9, 0, 232448, 233472, 65536, 4.3e12, 989e12, True, True),
        Target("sm_100a", 10, 0, 232448, 233472, 65536, 8e12, 2250e12, True, False),
        Target("sm_103a", 10, 3, 232448, 233472, 65536, 8e12, 2500e12, True, False),
        Target("sm_120a", 12, 0, 101376, 102400, 65536, 1.8e12, 500e12, False, False),
    )
}

DEFAULT = "sm_90a"


def target(name: str) -> Target:
    """The target called ``name``; ``sm_90`` is promoted to ``sm_90a``.

    Raises
    ------
    TargetError
        When kgen has no such target.
    """
    promoted = name if name in TARGETS else f"{name}a"
    if promoted not in TARGETS:
        raise TargetError("arch", name, f"allowed are {', '.join(TARGETS)}")
    return TARGETS[promoted]


def from_capability(major: int, minor: int) -> Target:
    """The target of a GPU of compute capability ``major.minor``."""
    for candidate in TARGETS.values():
        if (candidate.major, candidate.minor) == (major, minor):
            return candidate
    have = ", ".join(f"{t.major}.{t.minor} ({t.name})" for t in TARGETS.values())
    raise TargetError("compute capability", f"{major}.{minor}", f"kgen has targets for {have}")
