"""What can be asked for: the one source of every field, default and rule."""

from .config import Config, Option, Rule, needs, options, validate
from .documents import json_schema, table
from .families import (
    KERNELS,
    VERSION,
    DcpValue,
    Gate,
    IndexFront,
    Query,
    QueryNorm,
    QueryWait,
    Refused,
    Value,
    attempt,
    make,
    model_of,
    parse_slug,
)
from .matrix import select
from .single import refuse_ranks
from .steps import after_dcp, alone
from .value_bmm import value_bmm

__all__ = [
    "KERNELS",
    "VERSION",
    "Config",
    "DcpValue",
    "Gate",
    "IndexFront",
    "Option",
    "Query",
    "QueryNorm",
    "QueryWait",
    "Refused",
    "Rule",
    "Value",
    "after_dcp",
    "alone",
    "attempt",
    "json_schema",
    "make",
    "model_of",
    "needs",
    "options",
    "parse_slug",
    "refuse_ranks",
    "select",
    "table",
    "validate",
    "value_bmm",
]
