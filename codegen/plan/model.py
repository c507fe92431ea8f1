"""From a configuration and a target to a plan, the frozen result that every later stage reads: pure
arithmetic, no device is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..errors import PlanError
from ..schema import Config
from ..targets import DEFAULT, SMEM_RESERVED, Target
from ..targets import target as find_target
from .params import ParamTable


@dataclass(frozen=True)
class Region:
    """A piece of a CTA's dynamic shared memory, in bytes."""

    name: str
    offset: int
    size: int
    doc: str = ""


@dataclass(frozen=True)
class Work:
    """What one launch must move and compute at least, and the seconds that implies."""

    bytes: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Schedule:
    """How the work is cut: the scheme, token rows a CTA, the CTAs that split K, whether a CTA has
    its SM alone, and what ``auto`` of ``release`` means."""

    scheme: str
    tokens: int
    k_splits: int = 1
    alone: bool = False
    release: str = "wait"

    @property
    def name(self) -> str:
        """``ksplit16x2``, ``folded8_alone``."""
        splits = f"x{self.k_splits}" if self.k_splits > 1 else ""
        return f"{self.scheme}{self.tokens}{splits}{'_alone' * self.alone}"


@dataclass(frozen=True)
class Plan:
    """All that is known of a kernel before its source is rendered.

    ``grid`` counts CTAs, ``cluster`` those along x that form a cluster, ``threads`` those of a CTA;
    ``smem`` maps the dynamic shared memory. ``polling`` counts the clusters of a tile of tokens
    that wait for one another and for other ranks', so that a GPU must hold them all at once.

    ``code`` names the machine code. Plans of one ``code`` differ in launch data only, such as the
    grid, and share a cubin.
    """

    config: Config
    target: Target
    schedule: Schedule
    template: str
    code: str
    grid: tuple[int, int, int]
    cluster: int
    threads: int
    smem: tuple[Region, ...]
    params: ParamTable
    constants: Mapping[str, bool | int | str]
    work: Work
    polling: int = 0

    def resident(self, ranks: int) -> int:
        """Clusters that must fit a GPU at once where ``ranks`` share it.

        A rank alone needs those of one tile: tiles start in order, and each polls its own tokens.
        Ranks that share need those of all tiles: one rank's may all wait before another starts.
        """
        return self.polling * (1 if ranks == 1 else ranks * self.grid[2])

    @property
    def entry(self) -> str:
        """The kernel's C name."""
        return f"kgen_{self.code}"

    @property
    def scheme(self) -> str:
        return self.schedule.scheme

    @property
    def release(self) -> str:
        """When the next kernel of a chain may start: ``start``, ``wait`` or ``end``."""
        return release_of(self.config, self.schedule)

    @property
    def tokens(self) -> int:
        return self.schedule.tokens

    @property
    def k_splits(self) -> int:
        return self.schedule.k_splits

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory a block, in bytes."""
        return max((region.offset + region.size for region in self.smem), default=0)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that an SM shall hold: what shared memory lets it, at most the two that hide a
        prologue."""
        if self.schedule.alone:
            return 1
        return min(2, self.target.smem_per_sm // (self.smem_bytes + SMEM_RESERVED))

    @property
    def context(self) -> dict[str, Any]:
        """Every name that the template may use, with its value."""
        return {
            "code": self.code,
            "entry": self.entry,
            "fields": self.params.fields,
            "params_size": self.params.size,
            "num_tokens": self.tokens,
            "cluster_size": self.cluster,
            "num_threads": self.threads,
            "ctas_per_sm": self.ctas_per_sm,
            "release": self.release,
            **{f"smem_{region.name}": region.offset for region in self.smem},
            **self.constants,
        }


def plan(config: Config, arch: str | Target = DEFAULT, schedule: Schedule | None = None) -> Plan:
    """The plan of ``config`` on ``arch``; ``schedule`` overrides the target's table.

    A family's plan is made by the function ``plan`` of the module here that has the family's name.

    Raises
    ------
    PlanError
        When the kernel does not fit the target; the message has both numbers.
    """
    chip = arch if isinstance(arch, Target) else find_target(arch)
    family = import_module(f".{config.kernel}", __package__)
    made: Plan = family.plan(config, chip, schedule)
    if made.smem_bytes > chip.smem_per_block:
        raise PlanError(
            "arch",
            chip.name,
            f"{config.slug} (scheme {made.scheme}) needs {made.smem_bytes:,} bytes of shared "
            f"memory a block, {chip.name} has {chip.smem_per_block:,}",
        )
    return made


def stack(*pieces: tuple[str, int, str]) -> tuple[Region, ...]:
    """Regions (name, bytes, what lies there) one after the other, each a multiple of 16 bytes."""
    regions: list[Region] = []
    for name, size, doc in pieces:
        start = regions[-1].offset + regions[-1].size if regions else 0
        regions.append(Region(name, start, -(-size // 16) * 16, doc))
    return tuple(regions)


def release_of(config: Any, schedule: Schedule) -> str:
    """The mode of ``config``, a family's: ``start``, ``wait`` or ``end``."""
    if config.release != "auto":
        return str(config.release)
    late = getattr(config, "late", False)  # there is no wait at its start
    return "start" if late else schedule.release


def code_name(config: Config, schedule: Schedule, launch_data: Collection[str] = ("batch",)) -> str:
    """The name of a kernel's code, ``query_rows8_dsa``: the family, the schedule, and the fields of
    ``config`` that machine code depends on, all but those that are ``launch_data``. Of the modes
    of ``release``, ``wait`` goes without saying."""
    release = release_of(config, schedule)
    named = config.model_copy(update={"release": "auto" if release == "wait" else release})
    return "_".join((config.kernel, schedule.name, *named.tokens(launch_data))).replace(".", "_")


def work(moved: int, flops: int, target: Target) -> Work:
    """The floor that ``moved`` bytes and ``flops`` operations imply on ``target``."""
    return Work(moved, flops, max(moved / target.bandwidth, flops / target.flops))
