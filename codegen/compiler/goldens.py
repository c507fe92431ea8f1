"""What is rendered and committed: canonical sources in ``generated/``, and the calls' stub."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import targets
from ..errors import ConfigError
from ..files import replace
from ..plan import plan
from ..schema import Config, parse_slug, stub
from .render import TEMPLATES, render

FOLDER = TEMPLATES.parent / "generated"
DIFF_LINES = 20

# The canonical configurations, one a source: those whose source is committed.
SLUGS = (
    "query-h8-b8",
    "query-h8-b8-scheme.folded",
    "query-h8-b8-scheme.folded-dsa-fp8",
    "query-h8-b16",
    "query-h8-b64",
    "query-h8-b16-scheme.ksplit",
    "query-h8-b64-scheme.ksplit",
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


def files(chosen: Path | None = None, slugs: Sequence[str] = SLUGS) -> dict[Path, str]:
    """What is rendered, path by path: the sources of ``slugs`` for the default target, one a cubin,
    and the stub of the public calls; in the folder ``chosen`` the sources alone.

    Raises
    ------
    ConfigError
        Without ``chosen``, where kgen is installed and there is no checkout.
    """
    if chosen is None and not (FOLDER.parent / "pyproject.toml").exists():
        raise ConfigError("--output", None, "an installed kgen has no generated/: name a folder")
    rendered = (render(plan(parse_slug(slug), targets.DEFAULT)) for slug in slugs)
    made = {(chosen or FOLDER) / source.name: source.text for source in rendered}
    return made if chosen else {FOLDER.parent / stub.FILE: stub.text(), **made}


def write(wanted: Mapping[Path, str]) -> list[Path]:
    """Bring files up to date; those written or removed. What is right already is left alone."""
    touched = [difference.path for difference in compare(wanted)]
    for path in touched:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, wanted[path].encode())
        else:
            path.unlink()
    return touched


def compare(wanted: Mapping[Path, str]) -> list[Difference]:
    """What is not as ``wanted``; sources that none is wanted of are stale."""
    folders = {path.parent for path in wanted if path.suffix == ".cu"}
    present = {path for folder in folders for path in folder.glob("*.cu")}
    found = (_compare(path, wanted.get(path)) for path in sorted(present | wanted.keys()))
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
