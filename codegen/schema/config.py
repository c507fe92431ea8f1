"""What every configuration model shares: strict fields, rules in words, the slug, options.

All that a model says is read from here: nothing else repeats a field, a default or a rule.
"""

from __future__ import annotations

import difflib
import numbers
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from ..errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """A rule between fields: ``holds(config)`` or ``text`` says what is required of ``field``, and
    ``here(config)`` which number that is."""

    field: str
    text: str
    holds: Callable[[Any], bool]
    here: Callable[[Any], object] | None = None

    def refusal(self, config: Config) -> ConfigError:
        """The error for a configuration that breaks the rule."""
        here = f", here {self.here(config)}" if self.here else ""
        return ConfigError(self.field, getattr(config, self.field), self.text + here)


def needs(
    field: str,
    condition: str,
    holds: Callable[[Any], bool],
    here: Callable[[Any], object] | None = None,
) -> Rule:
    """``field`` may differ from its default only where ``holds``, as ``condition`` says."""

    def rule(config: Config) -> bool:
        return getattr(config, field) == type(config).model_fields[field].default or holds(config)

    return Rule(field, f"{field} {condition}", rule, here)


class Config(BaseModel):
    """Fields that every kernel family shares. Strict: ``True``, ``"8"`` and ``8.0`` are no ints."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    kernel: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise rule.refusal(self)
        return self

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults, in schema order; required ones always."""
        return {
            name: getattr(self, name)
            for name, info in type(self).model_fields.items()
            if info.is_required() or getattr(self, name) != info.default
        }

    @property
    def slug(self) -> str:
        """The configuration's name, unique and readable back: ``query-h8-b64-no_release``."""
        return "-".join((self.kernel, *self.tokens()))

    def tokens(self, without: Collection[str] = ()) -> Iterator[str]:
        """The parts of the slug after the family's name, but for the fields ``without``."""
        for option in options(type(self)):
            if option.name not in without:
                yield from _token(option, getattr(self, option.name))


@dataclass(frozen=True)
class Option:
    """One field as the command line, the docs table and the slug see it."""

    name: str
    type: type
    default: Any  # None where the field is required
    required: bool
    choices: tuple[str, ...]
    low: int | None
    high: int | None
    doc: str
    alias: str  # of the slug
    off: str = ""  # the choice that ``--no-NAME``, ``no_NAME`` in a slug and False name too

    @property
    def flag(self) -> str:
        """The command-line spelling; a switch that is on by default is turned off by it."""
        dashed = self.name.replace("_", "-")
        return f"--no-{dashed}" if self.type is bool and self.default else f"--{dashed}"

    @property
    def allowed(self) -> str:
        """What the field takes, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is bool:
            return "true or false"
        return f"an integer from {self.low} to {self.high}"


@cache
def options(model: type[Config]) -> tuple[Option, ...]:
    """The fields of ``model`` in order."""
    return tuple(_option(name, info) for name, info in model.model_fields.items())


def _option(name: str, info: FieldInfo) -> Option:
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    bounds = {
        key: getattr(bound, key)
        for bound in info.metadata
        for key in ("ge", "le")
        if hasattr(bound, key)
    }
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return Option(
        name=name,
        type=str if choices else _plain(info.annotation),
        default=None if info.is_required() else info.default,
        required=info.is_required(),
        choices=choices,
        low=bounds.get("ge"),
        high=bounds.get("le"),
        doc=info.description or "",
        alias=str(extra.get("slug", name)),
        off=str(extra.get("off", "")),
    )


def _plain(annotation: Any) -> type:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation if isinstance(annotation, type) else str


def _token(option: Option, value: Any) -> Iterator[str]:
    """How a slug tells of a field's value: not at all where that is the default."""
    if not option.required and value == option.default:
        return
    if option.off and value == option.off:
        yield f"no_{option.alias}"
    elif option.type is bool:
        yield option.alias if value else f"no_{option.alias}"
    else:
        yield f"{option.alias}.{value}" if option.type is str else f"{option.alias}{value}"


def validate(model: type[Config], fields: Mapping[str, Any]) -> Config:
    """``model(**fields)`` with pydantic's errors turned into one :class:`ConfigError`."""
    try:
        return model(**{name: _integer(value) for name, value in fields.items()})
    except ValidationError as error:
        raise _config_error(model, error) from None


def _integer(value: Any) -> Any:
    """``value``, as an int where it is an integer of another type, such as NumPy's."""
    other = isinstance(value, numbers.Integral) and not isinstance(value, int)
    return int(value) if other else value


def _config_error(model: type[Config], error: ValidationError) -> ConfigError:
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else model.kernel
    known = {option.name: option for option in options(model)}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        fields = ", ".join(known)
        return ConfigError(name, first["input"], f"{hint}{model.kernel} has the fields {fields}")
    if first["type"] == "missing":
        return ConfigError(name, "nothing", f"{model.kernel} requires it: {known[name].allowed}")
    return ConfigError(name, first["input"], f"allowed is {known[name].allowed}")


def read_token(model: type[Config], slug: str, token: str) -> tuple[str, Any]:
    for option in options(model):
        if option.type is bool and token in (option.alias, f"no_{option.alias}"):
            return option.name, token == option.alias
        if option.off and token == f"no_{option.alias}":
            return option.name, option.off
        if option.type is str and token.startswith(f"{option.alias}."):
            return option.name, token[len(option.alias) + 1 :]
        if option.type is int and (match := re.fullmatch(rf"{option.alias}(0|[1-9][0-9]*)", token)):
            return option.name, int(match[1])
    aliases = ", ".join(option.alias for option in options(model))
    raise ConfigError("slug", slug, f"{token!r} is none of its parts: {aliases}")
