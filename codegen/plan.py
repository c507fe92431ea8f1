"""From a configuration and a target to a plan: pure arithmetic, no device is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arch import DEFAULT, Target
from .arch import target as find_target
from .blueprint import Plan, Region, Schedule, Work
from .errors import NotBuiltError, PlanError
from .plan_dcp import plan_dcp_value, plan_query_wait
from .plan_front import plan_index_front
from .plan_norm import plan_query_norm
from .plan_query import plan_query
from .plan_value import plan_gate, plan_value
from .schema import (
    Config,
    DcpValue,
    Gate,
    IndexFront,
    Query,
    QueryNorm,
    QueryWait,
    Value,
    options,
)

__all__ = ["NOT_BUILT", "Plan", "Region", "Schedule", "Work", "plan"]

_PLANNERS: dict[type[Config], Callable[[Any, Target, Schedule | None], Plan]] = {
    Query: plan_query,
    QueryNorm: plan_query_norm,
    Value: plan_value,
    Gate: plan_gate,
    IndexFront: plan_index_front,
    QueryWait: plan_query_wait,
    DcpValue: plan_dcp_value,
}


def plan(config: Config, arch: str | Target = DEFAULT, schedule: Schedule | None = None) -> Plan:
    """The plan of ``config`` on ``arch``; ``schedule`` overrides the target's table.

    Raises
    ------
    NotBuiltError
        When this version builds no kernel for a field's value.
    PlanError
        When the kernel does not fit the target; the message has both numbers.
    """
    chip = arch if isinstance(arch, Target) else find_target(arch)
    _check_built(config)
    _check_transport(config, chip)
    made = _PLANNERS[type(config)](config, chip, schedule)
    if made.smem_bytes > chip.smem_per_block:
        raise PlanError(
            "arch",
            chip.name,
            f"{config.slug} (scheme {made.scheme}) needs {made.smem_bytes:,} bytes of shared "
            f"memory a block, {chip.name} has {chip.smem_per_block:,}",
        )
    return made


def _check_transport(config: Config, chip: Target) -> None:
    multicast = isinstance(config, Query) and config.dcp and config.transport == "multicast"
    if multicast and not chip.multimem:
        allowed = f"{chip.name} has no multicast stores (multimem); allowed is unicast"
        raise PlanError("transport", "multicast", allowed)


# Fields whose kernels do not exist yet: any value but the default is refused in plain words.
NOT_BUILT: dict[type[Config], tuple[str, ...]] = {}


def _check_built(config: Config) -> None:
    for option in options(type(config)):
        value = getattr(config, option.name)
        if option.name in NOT_BUILT.get(type(config), ()) and value != option.default:
            raise NotBuiltError(
                option.name, value, f"not built yet: this version has only {option.default!r}"
            )
