"""From a configuration and a target to a plan: pure arithmetic, no device is asked."""

from __future__ import annotations

from importlib import import_module

from ..errors import PlanError
from ..schema import Config
from ..targets import DEFAULT, Target
from ..targets import target as find_target
from .model import Plan, Schedule


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
