"""What one decode step of a configuration needs: query, value, and for DSA the indexer's front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import ConfigError
from .schema import Config, Gate, IndexFront, Option, Query, Value, options
from .value_bmm import value_bmm


def step_options() -> dict[str, Option]:
    """The fields of all kernels of a step by name; those of one name are one."""
    found: dict[str, Option] = {}
    for model in (Query, IndexFront, Value):
        for option in options(model):
            found.setdefault(option.name, option)
    return found


def kernels(
    point: Mapping[str, Any], archs: Iterable[str | None] = (None,)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The families that a step needs, each with the fields of ``point`` that it has.

    The way back from the latent is the one that :func:`value_bmm` tells for each of ``archs``.

    Raises
    ------
    ConfigError
        When a field is set that no kernel of the step has.
    """
    models: tuple[type[Config], ...] = (Query, *(IndexFront,) * bool(point.get("dsa")))
    every: tuple[type[Config], ...] = (*models, Value)
    for name, value in point.items():
        if not any(name in model.model_fields for model in every):
            _refuse_unless_default(name, value)
    yield from ((model.kernel, _fields(model, point)) for model in models)
    fields = _fields(Value, point)
    ways = {_by_gemm(point.get("heads"), point.get("batch"), arch) for arch in archs}
    yield from ((Value.kernel, fields),) * (False in ways)
    yield from ((Gate.kernel, fields),) * (True in ways)


def _by_gemm(heads: Any, batch: Any, arch: str | None) -> bool:
    """What :func:`value_bmm` tells; the kernel, where a number is missing."""
    return heads is not None and batch is not None and value_bmm(heads, batch, arch)


def _fields(model: type[Config], point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name in model.model_fields}


def _refuse_unless_default(name: str, value: Any) -> None:
    option = step_options().get(name)
    if option is None:
        known = ", ".join(step_options())
        raise ConfigError(name, value, f"the kernels of a decode step have the fields {known}")
    if value != option.default:
        text = "a decode step has index_front only with dsa; or name it by --kernel index_front"
        raise ConfigError(name, value, f"{name} belongs to index_front: {text}")
