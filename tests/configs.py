"""Configurations for tests: any legal one (hypothesis), and every form of a family."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kgen.codegen.errors import ConfigError
from kgen.codegen.inspection import coverage
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import Config, Option, families


def is_legal(kernel: str, fields: dict[str, Any]) -> bool:
    return isinstance(coverage.attempt(kernel, fields), Config)


def _values(option: Option) -> st.SearchStrategy[Any]:
    if option.choices:
        return st.sampled_from(option.choices)
    return st.booleans() if option.type is bool else st.integers(option.low, option.high)


@st.composite
def legal(draw: st.DrawFn) -> Config:
    """Any legal configuration of any family: a value that breaks a rule is left out again."""
    kernel = draw(st.sampled_from(tuple(families.KERNELS)))
    options = families.options(families.KERNELS[kernel])
    fields = {option.name: draw(_values(option)) for option in options if option.required}
    for option in options:
        value = draw(_values(option))
        if is_legal(kernel, fields | {option.name: value}):
            fields[option.name] = value
    return families.make(kernel, fields)


def _axis(option: Option) -> tuple[Any, ...]:
    if option.type is bool:
        return (False, True)
    if option.choices:
        return option.choices
    if option.name == "batch":
        return (8, 16, 64)
    return (8,) if option.required else (option.default,)


def _forms(kernel: str) -> Iterator[Plan]:
    axes = {option.name: _axis(option) for option in families.options(families.KERNELS[kernel])}
    for values in itertools.product(*axes.values()):
        fields = dict(zip(axes, values, strict=True))
        if not is_legal(kernel, fields):
            continue
        try:
            yield plan(families.make(kernel, fields))
        except ConfigError:
            continue
        except ConfigError as error:  # q_b_cp_async where auto is not rows
            assert error.field == "q_b_cp_async"


@cache
def forms() -> tuple[Plan, ...]:
    """A plan for every combination of switches and choices that is built, at three batches."""
    return tuple(itertools.chain.from_iterable(map(_forms, families.KERNELS)))
