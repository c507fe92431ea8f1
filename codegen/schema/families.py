"""The configuration models: what a kernel is, as the single source of every field and rule.

Command-line options, JSON Schema, the README's option table, the slug, the cache key's label and
the plan's inputs are all derived from the models here; nothing repeats a field or a default.
What the kernels of a family compute is said in docs/kernels.md, a section a family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ..errors import ConfigError
from .config import Config, Option, Rule, needs, options, read_token, validate

__all__ = ["Config", "Option", "Rule", "needs", "options", "validate"]

VERSION = 1  # of the schema: part of every cache key and manifest

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
_RELEASES = {True: "auto", False: "end"}  # as a switch would have it
Release = Annotated[
    Literal["auto", "start", "wait", "end"],
    BeforeValidator(lambda value: _RELEASES[value] if isinstance(value, bool) else value),
    Field(
        description="when the next kernel may start: at this one's start, after its wait for the"
        " previous one, at its end; auto: as is fastest; --no-release: end",
        json_schema_extra={"off": "end"},
    ),
]


TokensPerRequest = Annotated[
    int, Field(ge=1, le=256, description="token rows of a request; its length serves them all")
]
_WHOLE_REQUESTS = Rule("q", "q divides batch", lambda c: c.batch % c.q == 0, lambda c: c.batch)


Ranks = Annotated[int, Field(ge=2, le=64, description="decode context parallel ranks")]
MailboxHeads = Annotated[
    int, Field(ge=0, le=8192, description="query mailbox rows per token; 0 is dcp*heads")
]
Bf16Mailbox = Annotated[bool, Field(description="BF16 queries: dsa without fp8")]
Watchdog = Annotated[
    int,
    Field(
        ge=0,
        le=600_000,
        description="debug: trap a poll that lasts so many milliseconds; 0 is off",
    ),
]
_ENOUGH_HEADS = Rule(
    "q_heads",
    "q_heads is 0 or at least dcp*heads",
    lambda c: c.q_heads == 0 or c.q_heads >= c.dcp * c.heads,
    lambda c: c.dcp * c.heads,
)


class Query(Config):
    """RMSNorm, Q_B, W_UK absorption and the paged KV insert in one kernel."""

    kernel: ClassVar[str] = "query"

    heads: Heads
    batch: Batch
    scheme: Annotated[
        Literal["auto", "folded", "rows", "ksplit", "wgmma"],
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
    release: Release = "auto"
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
    watchdog: Watchdog = 0
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
        needs(
            "q_heads",
            "is 0 or at least dcp*heads",
            lambda c: c.q_heads >= c.dcp * c.heads,
            lambda c: c.dcp * c.heads,
        ),
        needs("watchdog", "needs dcp and poll", lambda c: c.dcp and c.poll),
        needs("q_b_cp_async", "belongs to the rows scheme", lambda c: c.scheme in ("auto", "rows")),
        Rule(
            "scheme",
            "folded needs an FP8 query (dense, or dsa with fp8) and no dcp",
            lambda c: c.scheme != "folded" or ((c.fp8 or not c.dsa) and not c.dcp),
        ),
        Rule(
            "release",
            "with late it is auto, start or end: there is no wait at the kernel's start",
            lambda c: not (c.late and c.release == "wait"),
        ),
    )


class QueryNorm(Config):
    """The q_c rows alone, for a DSA query kernel that does not store them."""

    kernel: ClassVar[str] = "query_norm"

    batch: Batch
    release: Release = "auto"


class Value(Config):
    """W_UV and the sigmoid gate of the attention latent."""

    kernel: ClassVar[str] = "value"

    heads: Heads
    batch: Batch
    q: TokensPerRequest = 1
    release: Release = "auto"

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_REQUESTS,)


class Gate(Config):
    """The sigmoid gate alone, after a batched GEMM with W_UV."""

    kernel: ClassVar[str] = "gate"

    heads: Heads
    batch: Batch
    q: TokensPerRequest = 1
    release: Release = "auto"

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_REQUESTS,)


class IndexFront(Config):
    """The DSA indexer's front: queries, head weights and keys of its scoring."""

    kernel: ClassVar[str] = "index_front"

    batch: Batch
    mx: Annotated[bool, Field(description="key scales as UE8M0 bytes")] = False
    fp4: Annotated[bool, Field(description="MXFP4 queries and keys")] = False
    release: Release = "auto"

    rules: ClassVar[tuple[Rule, ...]] = (
        needs("mx", "excludes fp4, whose scales are UE8M0 anyway", lambda c: not c.fp4),
    )


class QueryWait(Config):
    """The poll of the query mailbox alone, for a query kernel without ``poll``."""

    kernel: ClassVar[str] = "query_wait"

    heads: Heads
    batch: Batch
    dcp: Ranks
    q_heads: MailboxHeads = 0
    bf16: Bf16Mailbox = False
    watchdog: Watchdog = 0
    release: Release = "auto"

    rules: ClassVar[tuple[Rule, ...]] = (_ENOUGH_HEADS,)


class DcpValue(Config):
    """A DCP layer's tail: send, merge by LSE, W_UV, gate, re-arm the mailboxes."""

    kernel: ClassVar[str] = "dcp_value"

    heads: Heads
    batch: Batch
    q: TokensPerRequest = 1
    dcp: Ranks
    q_heads: MailboxHeads = 0
    bf16: Bf16Mailbox = False
    watchdog: Watchdog = 0
    release: Release = "auto"

    rules: ClassVar[tuple[Rule, ...]] = (_WHOLE_REQUESTS, _ENOUGH_HEADS)


# Every family that is defined above, in this order.
KERNELS: dict[str, type[Config]] = {
    model.kernel: model
    for model in tuple(vars().values())
    if isinstance(model, type) and issubclass(model, Config) and model is not Config
}


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


@dataclass(frozen=True)
class Refused:
    """Fields of a matrix that no kernel can have, and why."""

    name: str
    reason: str


def attempt(kernel: str, fields: Mapping[str, Any]) -> Config | Refused:
    """The configuration of ``fields``, or why there is none."""
    try:
        return make(kernel, fields)
    except ConfigError as error:
        words = (f"{name}={value}" for name, value in fields.items())
        return Refused(" ".join((kernel, *words)), str(error))


def parse_slug(text: str) -> Config:
    """The configuration that ``text`` names (the inverse of :attr:`Config.slug`)."""
    kernel, *tokens = text.split("-")
    model = model_of(kernel)
    fields: dict[str, Any] = {}
    for token in tokens:
        name, value = read_token(model, text, token)
        if name in fields:
            raise ConfigError("slug", text, f"names {name} once")
        fields[name] = value
    return validate(model, fields)
