"""The types of the public calls, rendered from the schema: ``__init__.pyi`` of the package."""

from __future__ import annotations

from collections.abc import Iterator

from ..public import MODULES, PLACES
from .config import Config, Option, options
from .families import KERNELS

FILE = "__init__.pyi"


def text() -> str:
    """The stub as the schema has it."""
    return "\n".join((*_head(), *(line for model in KERNELS.values() for line in _call(model)), ""))


def _head() -> Iterator[str]:
    yield "# Written by `kgen generate`: the families and their fields are those of the schema."
    yield "from typing import Literal\n"
    yield from (f"from .codegen import {name} as {name}" for name in MODULES)
    by_module = sorted(PLACES.items(), key=lambda each: (each[1], each[0]))
    yield from (f"from .codegen.{place} import {name} as {name}" for name, place in by_module)
    yield "\n__version__: str"


def _call(model: type[Config]) -> Iterator[str]:
    yield f"\ndef {model.kernel}("
    yield "    *,"
    yield "    arch: str | None = None,"
    yield from (f"    {each.name}: {_type(each)}{_default(each)}," for each in options(model))
    yield ") -> Kernel:"
    yield f'    """{model.__doc__}"""'


def _type(option: Option) -> str:
    choices = ", ".join(f'"{choice}"' for choice in option.choices)
    kind = f"Literal[{choices}]" if choices else option.type.__name__
    return f"{kind} | bool" if option.off else kind


def _default(option: Option) -> str:
    if option.required:
        return ""
    return f' = "{option.default}"' if option.choices else f" = {option.default!r}"
