"""Every combination of a family's switches: legal, or refused by a rule in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from ..errors import ConfigError
from .config import Config, Option, options, validate

# Settings of other fields under which other combinations are legal, as the sentences name them.
SETTINGS: dict[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "query": ((" without `--dcp`", {}), (" with `--dcp`", {"dcp": 2})),
}


@dataclass(frozen=True)
class Combination:
    """Switches that are not at their defaults; ``refusal`` is None where that is legal."""

    switches: tuple[Option, ...]
    refusal: ConfigError | None

    @property
    def fields(self) -> dict[str, bool]:
        """The values of the switched fields."""
        return {option.name: not option.default for option in self.switches}

    @property
    def flags(self) -> frozenset[str]:
        """The switches as the command line spells them."""
        return frozenset(option.flag for option in self.switches)


def switches(model: type[Config]) -> tuple[Option, ...]:
    """The boolean options of ``model``."""
    return tuple(option for option in options(model) if option.type is bool)


def combinations(model: type[Config], **fields: Any) -> Iterator[Combination]:
    """Every combination of the switches of ``model`` beside ``fields``; required ones not given
    take their lowest value."""
    required = {option.name: option.low for option in options(model) if option.required}
    choices = (((), (option,)) for option in switches(model))
    for chosen in product(*choices):
        switched: tuple[Option, ...] = sum(chosen, ())
        flipped = {option.name: not option.default for option in switched}
        yield Combination(switched, _refusal(model, required | fields | flipped))


def legal(model: type[Config], **fields: Any) -> tuple[Combination, ...]:
    """The combinations that the rules of ``model`` allow."""
    return tuple(found for found in combinations(model, **fields) if not found.refusal)


def _refusal(model: type[Config], fields: Mapping[str, Any]) -> ConfigError | None:
    try:
        validate(model, fields)
    except ConfigError as error:
        return error
    return None


def summaries(model: type[Config]) -> Iterator[str]:
    """Sentences that name every legal combination: each of the first alone, or with one of the
    second, which every one of them may be joined by."""
    order = [option.flag for option in switches(model)]
    for label, fields in SETTINGS.get(model.kernel, (("", {}),)):
        allowed = {found.flags for found in legal(model, **fields)}
        free = [flag for flag in order if all(flags ^ {flag} in allowed for flags in allowed)]
        bound = sorted({flags - set(free) for flags in allowed}, key=partial(_place, order))
        first = ", ".join(_spelt(order, flags) for flags in bound)
        second = ", ".join(_spelt(order, flags) for flags in _subsets(free))
        joined = f", each alone or with one of: {second}" if second else ""
        yield f"{len(allowed)} legal combinations of switches{label}: {first}{joined}."


def _subsets(flags: Iterable[str]) -> Iterator[frozenset[str]]:
    """The subsets that are not empty, in a binary counter's order."""
    for bits in list(product(*(((), (flag,)) for flag in reversed(tuple(flags)))))[1:]:
        yield frozenset(sum(bits, ()))


def _place(order: Sequence[str], flags: frozenset[str]) -> int:
    return sum(1 << order.index(flag) for flag in flags)


def _spelt(order: Sequence[str], flags: frozenset[str]) -> str:
    return f"`{' '.join(sorted(flags, key=order.index))}`" if flags else "none"
