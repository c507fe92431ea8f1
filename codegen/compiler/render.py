"""From a plan to CUDA source: one Jinja environment, and kgen's own headers beside the text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2

from ..errors import MissingHeaderError, RenderError
from ..plan import Plan

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@dataclass(frozen=True)
class Source:
    """A rendered kernel: ``text`` for the compiler, ``headers`` as (include name, contents)."""

    name: str
    template: str
    entry: str
    text: str
    headers: tuple[tuple[str, str], ...]


def render(plan: Plan) -> Source:
    """The CUDA source of ``plan``.

    Raises
    ------
    RenderError
        Naming the template and the line at fault.
    """
    return _rendered(plan.template, tuple(plan.context.items()))


@lru_cache(maxsize=256)
def _rendered(template: str, context: tuple[tuple[str, Any], ...]) -> Source:
    """The source of all plans of one context: those that differ in launch data only."""
    values = dict(context)
    try:
        text = environment().get_template(template).render(values)
    except Exception as error:  # a template is code: it may raise anything
        raise RenderError(f"{_place(template, error)}: {error}") from error
    return Source(f"{values['code']}.cu", template, values["entry"], text, headers(text))


def _place(template: str, error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"template {error.name or template}, line {error.lineno}"
    frame, place = error.__traceback__, f"template {template}"
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.endswith(".j2"):
            name = Path(frame.tb_frame.f_code.co_filename).name
            place = f"template {name}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


@cache
def environment() -> jinja2.Environment:
    """``//%`` statements, ``//%#`` notes and ``${name}`` values; undefined names are errors."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        line_statement_prefix="//%",
        line_comment_prefix="//%#",
        variable_start_string="${",
        variable_end_string="}",
        keep_trailing_newline=True,
        finalize=_finalize,
        autoescape=False,
    )


def _finalize(value: Any) -> Any:
    if value is None:
        raise jinja2.UndefinedError("a value is None")
    return str(value).lower() if isinstance(value, bool) else value


def headers(text: str) -> tuple[tuple[str, str], ...]:
    """kgen's headers that ``text`` includes, directly or not, sorted by name."""
    found: dict[str, str] = {}
    pending = _includes(text)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = _header(name)
            pending += _includes(found[name])
    return tuple(sorted(found.items()))


def _includes(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('#include "')]


@cache
def _header(name: str) -> str:
    if not (TEMPLATES / name).is_file():
        raise MissingHeaderError(f'#include "{name}": kgen has no such header')
    return (TEMPLATES / name).read_text(encoding="utf-8")
