"""Matrix syntax: ``heads=6,8,12 batch=1-16,32`` names every combination of its values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import ConfigError
from .schema import Config, Option, make, model_of, options, parse_slug

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def values(option: Option, text: str) -> tuple[Any, ...]:
    """The values that ``text`` names: a list of choices, or of integers and ranges ``1-16``.

    Raises
    ------
    ConfigError
        When a part is malformed, out of bounds or a range runs backwards.
    """
    read = _integers if option.type is int else _choices
    return tuple(dict.fromkeys(itertools.chain(*(read(option, part) for part in text.split(",")))))


def _choices(option: Option, part: str) -> Iterable[str]:
    if option.choices and part not in option.choices:
        raise ConfigError(option.name, part, f"allowed is {option.allowed}, or a list of them")
    return (part,)


def _integers(option: Option, part: str) -> Iterable[int]:
    match = _RANGE.fullmatch(part.strip())
    if not match:
        raise ConfigError(option.name, part, f"allowed is {_syntax(option)}")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ConfigError(option.name, part, f"a range runs upwards: {last}-{first}")
    outside = (option.low is not None and first < option.low) or (
        option.high is not None and last > option.high
    )
    if outside:
        raise ConfigError(option.name, part, f"allowed is {_syntax(option)}")
    return range(first, last + 1)


def _syntax(option: Option) -> str:
    return f"{option.allowed}, a list 6,8 or a range 1-16"


def expand(kernel: str, given: Mapping[str, Any]) -> tuple[Config, ...]:
    """Every combination of the values ``given`` (texts in matrix syntax, or booleans)."""
    known = {option.name: option for option in options(model_of(kernel))}
    axes = {name: _axis(known.get(name), value) for name, value in given.items()}
    combinations = itertools.product(*axes.values())
    return tuple(make(kernel, dict(zip(axes, point, strict=True))) for point in combinations)


def _axis(option: Option | None, value: Any) -> tuple[Any, ...]:
    return values(option, value) if option and isinstance(value, str) else (value,)


def select(slugs: Iterable[str], kernel: str, given: Mapping[str, Any]) -> tuple[Config, ...]:
    """The configurations named by ``slugs`` and by the options ``given``, each once."""
    return tuple(dict.fromkeys(_select(tuple(slugs), kernel, given)))


def _select(slugs: tuple[str, ...], kernel: str, given: Mapping[str, Any]) -> Iterator[Config]:
    yield from map(parse_slug, slugs)
    if given or not slugs:
        yield from expand(kernel, given)
