"""What one decode step needs: query, value or dcp_value, and for DSA the indexer's front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from ..targets import DEFAULT
from .config import Config, Option, options
from .families import DcpValue, Query, make, model_of
from .value_bmm import value_bmm

DCP_ONLY = ("dcp", "poll", "transport", "q_heads", "watchdog")  # fields of a query
STEP = ("query", "index_front", "value")  # whose fields a step is named by


def step_options() -> dict[str, Option]:
    """The fields of all kernels of a step by name; those of one name are one."""
    found: dict[str, Option] = {}
    for kernel in STEP:
        for option in options(model_of(kernel)):
            found.setdefault(option.name, option)
    return found


def kernels(
    point: Mapping[str, Any], archs: Iterable[str] = (DEFAULT,)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The families that a step needs, each with the fields of ``point`` that it has.

    The way back from the latent is ``dcp_value`` with ``dcp``, else the one that
    :func:`value_bmm` tells for each of ``archs``.

    Raises
    ------
    ConfigError
        When a field is set that no kernel of the step has.
    """
    front = ("index_front",) * bool(point.get("dsa"))
    if point.get("late") and point.get("release") == "start":
        text = "with late the index_front before the query triggers after its wait: auto, or end"
        raise ConfigError("release", "start", text)
    named = ("query", *front, "value")
    for name, value in point.items():
        if not any(name in model_of(kernel).model_fields for kernel in named):
            _refuse_unless_default(name, value)
    tail = _dcp_tail(point) if point.get("dcp") else _tail(point, archs)
    yield from ((kernel, _fields(kernel, point)) for kernel in ("query", *front))
    yield from tail


def _dcp_tail(point: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    wait = ("query_wait",) * (point.get("poll") is False)
    return [(kernel, after_dcp(kernel, point)) for kernel in (*wait, "dcp_value")]


def after_dcp(kernel: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kernel``, query_wait or dcp_value, that follow from those of a DCP query."""
    bf16 = bool(query.get("dsa")) and not query.get("fp8")
    return _fields(kernel, query) | ({"bf16": True} if bf16 else {})


def alone(config: Query | DcpValue) -> Config:
    """What computes the same on one rank: a query without DCP, or ``value`` for ``dcp_value``."""
    if isinstance(config, DcpValue):
        return make("value", _fields("value", dict(config)))
    kept = {name: value for name, value in config.changed().items() if name not in DCP_ONLY}
    return make("query", kept)


def _tail(point: Mapping[str, Any], archs: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    ways = {_by_gemm(point.get("heads"), point.get("batch"), arch) for arch in archs}
    kernels = ("value",) * (False in ways) + ("gate",) * (True in ways)
    return [(kernel, _fields(kernel, point)) for kernel in kernels]


def _by_gemm(heads: Any, batch: Any, arch: str) -> bool:
    """What :func:`value_bmm` tells; the kernel, where a number is missing."""
    return heads is not None and batch is not None and value_bmm(heads, batch, arch)


def _fields(kernel: str, point: Mapping[str, Any]) -> dict[str, Any]:
    fields = model_of(kernel).model_fields
    return {name: value for name, value in point.items() if name in fields}


def _refuse_unless_default(name: str, value: Any) -> None:
    option = step_options().get(name)
    if option is None:
        known = ", ".join(step_options())
        raise ConfigError(name, value, f"the kernels of a decode step have the fields {known}")
    if value != option.default:
        text = "a decode step has index_front only with dsa; or name it by --kernel index_front"
        raise ConfigError(name, value, f"{name} belongs to index_front: {text}")
