"""The table of single edits of rendered kernels: ``data/mutations.toml``.

``kernel`` names one of :data:`KERNELS`. The ``nth`` place (from 0) of ``old`` in the rendered
source becomes ``new``. A report may point at the lines of the edit, or at any line with one of
``partners``: what the removed text kept apart, or waits for what now never comes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from kgen.codegen.plan import Schedule

from .places import DATA

# Family, fields, and the schedule where another than the plan's is meant.
KERNELS: dict[str, tuple[str, dict[str, Any], Schedule | None]] = {
    "folded": (
        "query",
        {"heads": 2, "batch": 3, "dsa": True, "fp8": True, "scheme": "folded"},
        None,
    ),
    "rows": ("query", {"heads": 2, "batch": 3, "dsa": True, "fp8": True}, None),
    "rows9": ("query", {"heads": 1, "batch": 9, "scheme": "rows"}, None),
    "kpair": ("query", {"heads": 2, "batch": 9, "dsa": True}, None),
    "ksplit": ("query", {"heads": 1, "batch": 20}, Schedule("ksplit", 32, 8)),
    "wgmma": ("query", {"heads": 1, "batch": 40, "scheme": "wgmma"}, None),
    "norm": ("query_norm", {"batch": 2}, None),
    "value": ("value", {"heads": 1, "batch": 5}, None),
    "gate": ("gate", {"heads": 1, "batch": 3}, None),
    "front": ("index_front", {"batch": 20}, Schedule("rows", 24)),
    "frontk": ("index_front", {"batch": 40}, None),
}


@dataclass(frozen=True)
class Mutation:
    """One edit."""

    name: str
    kernel: str
    old: str
    new: str = ";"
    nth: int = 0
    partners: tuple[str, ...] = ()


def _table() -> tuple[Mutation, ...]:
    rows = tomllib.loads((DATA / "mutations.toml").read_text(encoding="utf-8"))["mutation"]
    return tuple(Mutation(**row | {"partners": tuple(row.get("partners", ()))}) for row in rows)


MUTATIONS = _table()
