"""The schema as others read it: JSON Schema, and rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .config import Config, Option, options
from .families import KERNELS, VERSION

_SLUG = "^[a-z_]+(-[a-z0-9_.]+)+$"
_MATRIX = r"^\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*$"


def json_schema() -> dict[str, Any]:
    """JSON Schema of a matrix file: slugs, and tables of fields by family; rules are in words."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kgen matrix file",
        "description": f"Kernels by slug, and by family and fields; schema version {VERSION}.",
        "type": "object",
        "properties": {
            "slugs": {"type": "array", "items": {"type": "string", "pattern": _SLUG}},
            **{
                name: {"type": "array", "minItems": 1, "items": _table_schema(model)}
                for name, model in KERNELS.items()
            },
        },
        "additionalProperties": False,
        "minProperties": 1,
    }


def _table_schema(model: type[Config]) -> dict[str, Any]:
    rules = "; ".join(rule.text for rule in model.rules)
    return {
        "type": "object",
        "description": f"{model.__doc__}{' Rules: ' if rules else ''}{rules}",
        "properties": {option.name: _field_schema(option) for option in options(model)},
        "required": [option.name for option in options(model) if option.required],
        "additionalProperties": False,
    }


def _field_schema(option: Option) -> dict[str, Any]:
    """A value, a text in matrix syntax, or a list of such."""
    if option.type is bool:
        one: dict[str, Any] = {"type": "boolean"}
    elif option.choices:
        choice = "|".join(option.choices)
        one = {"type": "string", "pattern": f"^({choice})(,({choice}))*$"}
    else:
        number = {"type": "integer", "minimum": option.low, "maximum": option.high}
        one = {"anyOf": [number, {"type": "string", "pattern": _MATRIX}]}
    several = {"type": "array", "minItems": 1, "items": one}
    default = {} if option.required else {"default": option.default}
    return {"description": option.doc, "anyOf": [one, several], **default}


def table(model: type[Config]) -> Iterator[tuple[str, str, str, str]]:
    """Rows (option, allowed, default, meaning) of the docs table of ``model``."""
    for option in options(model):
        default = "required" if option.required else str(option.default).lower()
        yield option.flag, option.allowed, default, option.doc
