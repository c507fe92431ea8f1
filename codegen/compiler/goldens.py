"""The folder ``generated/``: the rendered source of the canonical set, written or compared."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import targets
from ..errors import ConfigError
from ..plan import plan
from ..schema import Config, parse_slug
from .render import TEMPLATES, render

FOLDER = TEMPLATES.parent / "generated"
DIFF_LINES = 20

# The canonical configurations: those whose source is committed.
SLUGS = (
    "query-h6-b1",
    "query-h6-b64",
    "query-h8-b1",
    "query-h8-b8",
    "query-h8-b16",
    "query-h8-b32",
    "query-h8-b64",
    "query-h8-b128",
    "query-h12-b8",
    "query-h16-b256",
    "query-h128-b1",
    "query-h128-b64",
    "query-h8-b8-dsa",
    "query-h8-b64-dsa",
    "query-h8-b8-dsa-fp8",
    "query-h8-b64-dsa-fp8-nvfp4",
    "query-h8-b16-dsa-late",
    "query-h8-b8-dcp2-transport.unicast",
    "query_norm-b64",
    "value-h8-b64",
    "gate-h8-b64",
    "dcp_value-h8-b16-dcp2",
    "index_front-b8",
    "index_front-b32",
    "index_front-b32-fp4",
)


def configs() -> tuple[Config, ...]:
    """The canonical configurations, in order."""
    return tuple(map(parse_slug, SLUGS))


@dataclass(frozen=True)
class Difference:
    """One file that is not as the templates render it; ``diff`` is at most ``DIFF_LINES``."""

    path: Path
    kind: Literal["differs", "missing", "stale"]
    diff: str = ""


def folder(chosen: Path | None) -> Path:
    """``chosen``, else the checkout's ``generated/``; ConfigError where there is none."""
    if chosen is None and not (FOLDER.parent / "pyproject.toml").exists():
        raise ConfigError("--output", None, "an installed kgen has no generated/: name a folder")
    return chosen or FOLDER


def sources() -> dict[str, str]:
    """File name -> rendered text, of the canonical set for the default target."""
    rendered = (render(plan(config, targets.DEFAULT)) for config in configs())
    return {source.name: source.text for source in rendered}


def write(into: Path, texts: Mapping[str, str]) -> list[Path]:
    """Bring ``into`` up to date; the files written or removed, those already right left alone."""
    into.mkdir(parents=True, exist_ok=True)
    touched = [difference.path for difference in compare(into, texts)]
    for path in touched:
        if path.name in texts:
            path.write_text(texts[path.name], encoding="utf-8")
        else:
            path.unlink()
    return touched


def compare(into: Path, texts: Mapping[str, str]) -> list[Difference]:
    """What differs between ``into`` and ``texts``, by name."""
    present = {path.name for path in into.glob("*.cu")}
    found = (_compare(into / name, texts.get(name)) for name in sorted(present | texts.keys()))
    return [difference for difference in found if difference]


def _compare(path: Path, text: str | None) -> Difference | None:
    if text is None:
        return Difference(path, "stale")
    if not path.exists():
        return Difference(path, "missing")
    old = path.read_text(encoding="utf-8")
    return None if old == text else Difference(path, "differs", _diff(path.name, old, text))


def _diff(name: str, old: str, new: str) -> str:
    names = (f"{name} (committed)", f"{name} (rendered)")
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), *names, n=1, lineterm=""))
    more = len(lines) - DIFF_LINES
    return "\n".join(lines[:DIFF_LINES] + ([f"... {more} lines more"] if more > 0 else []))
