"""The folder ``generated/``: the rendered source of the canonical set, written or compared."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import arch, canonical
from .errors import ConfigError
from .plan import plan
from .render import render

FOLDER = Path(__file__).parent.parent / "generated"
DIFF_LINES = 20


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
    rendered = (render(plan(config, arch.DEFAULT)) for config in canonical.configs())
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
