"""The configuration models: what a kernel is, as the single source of every field and rule.

Command-line options, JSON Schema, the README's option table, the slug, the cache key's label and
the plan's inputs are all derived from the models here; nothing repeats a field or a default.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from .errors import ConfigError

VERSION = 1  # of the schema: part of every cache key and manifest


@dataclass(frozen=True)
class Rule:
    """A rule between fields: ``holds(config)`` or ``text`` says what is required of ``field``."""

    field: str
    text: str
    holds: Callable[[Any], bool]


def needs(field: str, condition: str, holds: Callable[[Any], bool]) -> Rule:
    """``field`` may differ from its default only where ``holds``, as ``condition`` says."""

    def rule(config: Config) -> bool:
        return getattr(config, field) == type(config).model_fields[field].default or holds(config)

    return Rule(field, f"{field} {condition}", rule)


class Config(BaseModel):
    """Fields that every kernel family shares. Strict: ``True``, ``"8"`` and ``8.0`` are no ints."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    kernel: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise ConfigError(rule.field, getattr(self, rule.field), rule.text)
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
        tokens = (_token(option, getattr(self, option.name)) for option in options(type(self)))
        return "-".join((self.kernel, *(token for token in tokens if token)))


Heads = Annotated[
    int,
    Field(ge=1, le=128, description="query heads of this rank", json_schema_extra={"slug": "h"}),
]
Batch = Annotated[
    int,
    Field(
        ge=1,
        le=256,
        description="token rows of a launch at most",
        json_schema_extra={"slug": "b"},
    ),
]
Release = Annotated[
    bool, Field(description="launch dependents right after the wait for the previous kernel")
]


TokensPerRequest = Annotated[
    int, Field(ge=1, le=256, description="token rows of a request; its length serves them all")
]
_WHOLE_REQUESTS = Rule("q", "q divides batch", lambda c: c.batch % c.q == 0)


class Query(Config):
    """RMSNorm, Q_B, W_UK absorption and the paged KV insert in one kernel (SPEC section 2)."""

    kernel: ClassVar[str] = "query"

    heads: Heads
    batch: Batch
    scheme: Annotated[
        Literal["auto", "rows", "ksplit"],
        Field(description="how a cluster splits Q_B; auto asks the target's table"),
    ] = "auto"
    dcp: Annotated[
        int, Field(ge=0, le=64, description="decode context parallel ranks; 0 is off")
    ] = 0
    dsa: Annotated[
        bool, Field(description="K3.1 DSA: BF16 query, fp8_ds_mla cache, q_c stored")
    ] = False
    fp8: Annotated[bool, Field(description="with dsa: per-tensor FP8 query and cache")] = False
    nvfp4: Annotated[bool, Field(description="with dsa and fp8: nvfp4_ds_mla cache")] = False
    late: Annotated[
        bool, Field(description="with dsa: wait for the previous kernel at the end")
    ] = False
    release: Release = True
    store_qc: Annotated[bool, Field(description="with dsa: also store the normalised q_c rows")] = (
        True
    )
    poll: Annotated[bool, Field(description="with dcp: wait here for every rank's query")] = True
    transport: Annotated[
        Literal["multicast", "unicast"], Field(description="with dcp: how mailboxes are written")
    ] = "multicast"
    q_heads: Annotated[
        int, Field(ge=0, le=8192, description="with dcp: mailbox rows per token; 0 is dcp*heads")
    ] = 0
    q_b_cp_async: Annotated[
        bool, Field(description="rows scheme: Q_B by 16-byte cp.async, not by bulk copies")
    ] = False

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("dcp", "dcp is 0 (off) or 2..64", lambda c: c.dcp != 1),
        needs("fp8", "needs dsa (dense is FP8 always)", lambda c: c.dsa),
        needs("nvfp4", "needs dsa and fp8", lambda c: c.dsa and c.fp8),
        needs("late", "needs dsa and no dcp", lambda c: c.dsa and not c.dcp),
        needs("store_qc", "has a meaning only with dsa", lambda c: c.dsa),
        needs("poll", "has a meaning only with dcp", lambda c: c.dcp),
        needs("transport", "has a meaning only with dcp", lambda c: c.dcp),
        needs("q_heads", "has a meaning only with dcp", lambda c: c.dcp),
        needs("q_heads", "is 0 or at least dcp*heads", lambda c: c.q_heads >= c.dcp * c.heads),
        needs("q_b_cp_async", "belongs to the rows scheme", lambda c: c.scheme != "ksplit"),
    )


class QueryNorm(Config):
    """The q_c rows alone, for a DSA query kernel that does not store them."""

    kernel: ClassVar[str] = "query_norm"

    batch: Batch
    release: Release = True


class Value(Config):
    """W_UV and the sigmoid gate of the attention latent (SPEC section 4)."""

    kernel: ClassVar[str] = "value"

    heads: Heads
    batch: Batch
    q: TokensPerRequest = 1
    release: Release = True

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_REQUESTS,)


class Gate(Config):
    """The sigmoid gate alone, after a batched GEMM with W_UV (SPEC section 4)."""

    kernel: ClassVar[str] = "gate"

    heads: Heads
    batch: Batch
    q: TokensPerRequest = 1
    release: Release = True

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_REQUESTS,)


class IndexFront(Config):
    """The DSA indexer's front: queries, head weights and keys of its scoring (SPEC section 5)."""

    kernel: ClassVar[str] = "index_front"

    batch: Batch
    mx: Annotated[bool, Field(description="key scales as UE8M0 bytes")] = False
    fp4: Annotated[bool, Field(description="MXFP4 queries and keys")] = False
    release: Release = True

    rules: ClassVar[tuple[Rule, ...]] = (
        needs("mx", "excludes fp4, whose scales are UE8M0 anyway", lambda c: not c.fp4),
    )


MODELS: tuple[type[Config], ...] = (Query, QueryNorm, Value, Gate, IndexFront)
KERNELS: dict[str, type[Config]] = {model.kernel: model for model in MODELS}


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
    )


def _plain(annotation: Any) -> type:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation if isinstance(annotation, type) else str


def _token(option: Option, value: Any) -> str:
    if not option.required and value == option.default:
        return ""
    if option.type is bool:
        return option.alias if value else f"no_{option.alias}"
    return f"{option.alias}.{value}" if option.type is str else f"{option.alias}{value}"


def model_of(kernel: str) -> type[Config]:
    """The model of the kernel family ``kernel``; ConfigError lists those there are."""
    if kernel not in KERNELS:
        raise ConfigError("kernel", kernel, f"allowed are {', '.join(KERNELS)}")
    return KERNELS[kernel]


def make(kernel: str, fields: Mapping[str, Any]) -> Config:
    """A checked configuration of the family ``kernel``.

    Raises
    ------
    ConfigError
        Naming the first field at fault, the value received and what is allowed.
    """
    return validate(model_of(kernel), fields)


def validate(model: type[Config], fields: Mapping[str, Any]) -> Config:
    """``model(**fields)`` with pydantic's errors turned into one :class:`ConfigError`."""
    try:
        return model(**fields)
    except ValidationError as error:
        raise _config_error(model, error) from None


def _config_error(model: type[Config], error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else model.kernel
    known = {option.name: option for option in options(model)}
    if name not in known:
        fields = ", ".join(known)
        return ConfigError(name, first["input"], f"{model.kernel} has the fields {fields}")
    if first["type"] == "missing":
        return ConfigError(name, "nothing", f"{model.kernel} requires it: {known[name].allowed}")
    return ConfigError(name, first["input"], f"allowed is {known[name].allowed}")


def parse_slug(text: str) -> Config:
    """The configuration that ``text`` names (the inverse of :attr:`Config.slug`)."""
    kernel, *tokens = text.split("-")
    model = model_of(kernel)
    return validate(model, dict(_read(model, text, token) for token in tokens))


def _read(model: type[Config], slug: str, token: str) -> tuple[str, Any]:
    for option in options(model):
        if option.type is bool and token in (option.alias, f"no_{option.alias}"):
            return option.name, token == option.alias
        if option.type is str and token.startswith(f"{option.alias}."):
            return option.name, token[len(option.alias) + 1 :]
        if option.type is int and (match := re.fullmatch(rf"{option.alias}(\d+)", token)):
            return option.name, int(match[1])
    aliases = ", ".join(option.alias for option in options(model))
    raise ConfigError("slug", slug, f"{token!r} is none of its parts: {aliases}")


def is_slug(text: str) -> bool:
    """Whether ``text`` looks like a slug of a known family."""
    return text.partition("-")[0] in KERNELS and "-" in text


def json_schema() -> dict[str, Any]:
    """JSON Schema of every kernel family, with the rules between fields in words."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kgen configurations",
        "version": VERSION,
        "kernels": {
            name: model.model_json_schema() | {"rules": [rule.text for rule in model.rules]}
            for name, model in KERNELS.items()
        },
    }


def table(model: type[Config]) -> Iterator[tuple[str, str, str, str]]:
    """Rows (option, allowed, default, meaning) of the docs table of ``model``."""
    for option in options(model):
        default = "required" if option.required else str(option.default).lower()
        yield option.flag, option.allowed, default, option.doc
