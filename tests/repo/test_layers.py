"""The rooms of ``codegen/`` stand in an order: each imports only from rooms above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..helpers.places import ROOT

CODEGEN = ROOT / "codegen"

# From the ground up: a room imports from those before it, modules of one line from one another.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "version", "tables", "dims", "public"),
    ("settings", "targets", "files"),
    ("logs",),
    ("reference",),
    ("schema",),
    ("plan",),
    ("compiler",),
    ("cache",),
    ("build",),
    ("aot",),
    ("runtime",),
    ("dcp",),
    ("api", "dispatch"),
    ("emulator",),
    ("verify",),
    ("inspection",),
    ("bench",),
    ("commands",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
DOORS = ("plan", "schema")  # rooms whose public names are imported from their __init__
FILES = sorted(CODEGEN.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room that a module of ``codegen/`` is in, or is."""
    return path.relative_to(CODEGEN).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted place below ``codegen`` of each name that a module imports from the house."""
    package = path.relative_to(CODEGEN).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        assert node.level <= len(package) + 1, f"{path}:{node.lineno} imports from the root"
        base = package[: len(package) + 1 - node.level]
        module = tuple(node.module.split(".")) if node.module else ()
        for name in node.names:
            yield node.lineno, (*base, *module, name.name)


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CODEGEN)))
def test_no_import_runs_up(path: Path) -> None:
    here = room_of(path)
    for line, place in imports(path):
        if place[0] != here:
            assert LEVEL[place[0]] <= LEVEL[here], f"{path}:{line} imports {'.'.join(place)}"


@pytest.mark.parametrize("door", DOORS)
def test_public_names_come_through_the_door(door: str) -> None:
    tree = ast.parse((CODEGEN / door / "__init__.py").read_text(encoding="utf-8"))
    public = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for path in FILES:
        if room_of(path) == door:
            continue
        for line, place in imports(path):
            if place[0] == door and len(place) > 2:
                assert place[-1] not in public, f"{path}:{line}: from ..{door} import {place[-1]}"


def test_folders_and_modules_are_small() -> None:
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= 13, folder
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path
