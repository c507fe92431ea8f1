"""Configurations for tests: any legal one (hypothesis), and every form of a family."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kgen.codegen import schema
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import Config, Option


def is_legal(kernel: str, fields: dict[str, Any]) -> bool:
    return isinstance(schema.attempt(kernel, fields), Config)


def _values(option: Option) -> st.SearchStrategy[Any]:
    if option.choices:
        return st.sampled_from(option.choices)
    return st.booleans() if option.type is bool else st.integers(option.low, option.high)


@st.composite
def legal(draw: st.DrawFn) -> Config:
    """Any legal configuration of any family: a value that breaks a rule is left out again."""
    kernel = draw(st.sampled_from(tuple(schema.KERNELS)))
    options = schema.options(schema.KERNELS[kernel])
    fields = {option.name: draw(_values(option)) for option in options if option.required}
    for option in options:
        value = draw(_values(option))
        if is_legal(kernel, fields | {option.name: value}):
            fields[option.name] = value
    return schema.make(kernel, fields)


def _axis(option: Option) -> tuple[Any, ...]:
    if option.type is bool:
        return (False, True)
    if option.choices:
        return option.choices
    if option.name == "batch":
        return (8, 16, 64)
    return (8,) if option.required else (option.default,)


def _forms(kernel: str) -> Iterator[Plan]:
    axes = {option.name: _axis(option) for option in schema.options(schema.KERNELS[kernel])}
    for values in itertools.product(*axes.values()):
        fields = dict(zip(axes, values, strict=True))
        if not is_legal(kernel, fields):
            continue
        try:
            yield plan(schema.make(kernel, fields))
        except ConfigError as error:  # what belongs to a scheme, where that is another
            assert error.field in ("q_b_cp_async", "scheme")


def _mailed() -> Iterator[Plan]:
    """Queries that ranks share, in every form and by either transport."""
    switches: tuple[dict[str, Any], ...] = (
        {},
        {"dsa": True},
        {"dsa": True, "poll": False},
        {"watchdog": 50},
    )
    for fields, transport in itertools.product(switches, ("multicast", "unicast")):
        shape = {"heads": 8, "batch": 8, "dcp": 2, "transport": transport}
        yield plan(schema.make("query", shape | fields))


@cache
def forms() -> tuple[Plan, ...]:
    """A plan for every combination of switches and choices, at three batches."""
    return (*itertools.chain.from_iterable(map(_forms, schema.KERNELS)), *_mailed())
