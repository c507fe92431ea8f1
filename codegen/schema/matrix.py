"""Matrix syntax: ``heads=6,8,12 batch=1-16,32`` names every combination of its values.

A matrix file is TOML: a list ``slugs``, and tables named by kernel families, ``[[query]]``, whose
keys are fields of the schema and whose values are numbers, booleans, matrix syntax or lists.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError
from ..targets import DEFAULT
from . import steps
from .config import Config, Option, options
from .families import KERNELS, make, model_of, parse_slug

T = TypeVar("T")
SUFFIX = ".toml"  # what tells a matrix file from a slug

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
    return tuple(_expand(kernel, given, make))


def _expand(
    kernel: str, given: Mapping[str, Any], make: Callable[[str, Mapping[str, Any]], T]
) -> Iterator[T]:
    known = {option.name: option for option in options(model_of(kernel))}
    for point in _points(known, given):
        yield make(kernel, point)


def _points(known: Mapping[str, Option], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    axes = {name: _axis(name, known.get(name), value) for name, value in given.items()}
    for point in itertools.product(*axes.values()):
        yield dict(zip(axes, point, strict=True))


def _axis(name: str, option: Option | None, value: Any) -> tuple[Any, ...]:
    if isinstance(value, list):
        if not value:
            raise ConfigError(name, value, "a list has at least one value")
        return tuple(itertools.chain.from_iterable(_axis(name, option, each) for each in value))
    return values(option, value) if option and isinstance(value, str) else (value,)


def select(
    names: Iterable[str],
    kernel: str | None,
    given: Mapping[str, Any],
    make: Callable[[str, Mapping[str, Any]], T] = make,  # type: ignore[assignment]
    archs: Iterable[str] = (DEFAULT,),
) -> tuple[T, ...]:
    """What slugs and matrix files ``names`` and the options ``given`` name, each once.

    Without ``kernel`` the options name all kernels of a decode step on ``archs``. ``make`` turns
    a family and its fields into what is returned.
    """
    named = tuple(names)
    if kernel and named and not given:
        raise ConfigError("--kernel", kernel, f"it goes with options; {named[0]} says its family")
    if kernel:
        _check_owner(kernel, given)
    found = list(_named_ones(named, make))
    if given or not named:
        found += _expand(kernel, given, make) if kernel else _steps(given, make, tuple(archs))
    return tuple(dict.fromkeys(found))


def _check_owner(kernel: str, given: Mapping[str, Any]) -> None:
    """Refuse an option of other families only, and say whose it is."""
    for name, value in given.items():
        owners = [each for each in KERNELS if name in KERNELS[each].model_fields]
        if owners and kernel not in owners:
            raise ConfigError(
                name, value, f"it is an option of {', '.join(owners)}, not of {kernel}"
            )


def _named_ones(names: tuple[str, ...], make: Callable[[str, Mapping[str, Any]], T]) -> Iterator[T]:
    for name in names:
        yield from _read(Path(name), make) if name.endswith(SUFFIX) else (_named(name, make),)


def _steps(
    given: Mapping[str, Any],
    make: Callable[[str, Mapping[str, Any]], T],
    archs: tuple[str, ...],
) -> Iterator[T]:
    for point in _points(steps.step_options(), given):
        for kernel, fields in steps.kernels(point, archs):
            yield make(kernel, fields)


def _named(slug: str, make: Callable[[str, Mapping[str, Any]], T]) -> T:
    config = parse_slug(slug)
    return make(config.kernel, dict(config))


def _read(path: Path, make: Callable[[str, Mapping[str, Any]], T]) -> Iterator[T]:
    """What a matrix file names, in its order, slugs first."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("matrix file", str(path), f"cannot be read: {reason}") from None
    if not any(content.values()):
        raise ConfigError(
            "matrix file", str(path), "it names no kernel: slugs, or tables [[query]]"
        )
    with _within(f"{path}: slugs"):
        yield from [_named(slug, make) for slug in _list("slugs", content.pop("slugs", []), str)]
    for kernel, tables in content.items():
        with _within(f"{path}: {kernel}"):
            listed = _list(kernel, tables, dict)
            model_of(kernel)
        for number, table in enumerate(listed, 1):
            with _within(f"{path}: [[{kernel}]] number {number}"):
                _check_names(kernel, table)
                yield from list(_expand(kernel, table, make))


@contextmanager
def _within(place: str) -> Iterator[None]:
    """An error inside names ``place``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.field}", error.value, error.allowed) from None


def _check_names(kernel: str, table: Mapping[str, Any]) -> None:
    fields = [option.name for option in options(model_of(kernel))]
    for name in table:
        if name not in fields:
            raise ConfigError(name, table[name], f"{kernel} has the fields {', '.join(fields)}")


def _list(name: str, value: Any, kind: type[T]) -> list[T]:
    if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
        what = "a list of slugs" if kind is str else f"tables, [[{name}]]"
        raise ConfigError(name, value, f"allowed is {what}")
    return value
