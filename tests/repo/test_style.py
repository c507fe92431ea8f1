"""House rules that hold of the text of templates and modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..helpers.places import ROOT

TEMPLATES = sorted(ROOT.glob("templates/**/*.j2"))
EMULATOR = ROOT / "templates" / "emulator"
ALL = sorted(path for path in ROOT.glob("templates/**/*") if path.suffix not in ("", ".py"))
DEVICE = [p for p in ALL if p.suffix in (".j2", ".cuh") and EMULATOR not in p.parents]
FOLDERS = ("codegen", "benchmarks", "examples")
MODULES = sorted([*ROOT.glob("*.py"), *(p for f in FOLDERS for p in ROOT.glob(f"{f}/**/*.py"))])
ASM = re.compile(r"\b(__)?asm(__)?\b")
OPENS, CLOSES = re.compile(r"^\s*//% (if|for)\b"), re.compile(r"^\s*//% end(if|for)\b")


def name(path: Path) -> str:
    """What an include calls a file of the templates."""
    return path.relative_to(ROOT / "templates").as_posix()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def over(limit: int, paths: list[Path]) -> dict[str, int]:
    sizes = {str(path.relative_to(ROOT)): len(lines(path)) for path in paths}
    assert sizes
    return {name: size for name, size in sizes.items() if size > limit}


def test_templates_have_at_most_400_lines() -> None:
    assert over(400, ALL) == {}


def test_modules_have_at_most_300_lines() -> None:
    assert over(300, MODULES) == {}


def test_asm_is_in_the_plain_headers_only() -> None:
    sources = sorted(ROOT.glob("generated/*.cu"))
    assert sources
    assert [p.name for p in (*TEMPLATES, *sources) if ASM.search(p.read_text())] == []
    assert any(ASM.search(path.read_text()) for path in DEVICE)


def test_headers_have_no_jinja() -> None:
    headers = [path for path in DEVICE if path.suffix == ".cuh"]
    assert [path.name for path in headers if re.search(r"//%|\$\{", path.read_text())] == []


def depth(text: list[str]) -> int:
    """The deepest nesting of tags."""
    now = deepest = 0
    for line in text:
        now += bool(OPENS.match(line)) - bool(CLOSES.match(line))
        deepest = max(deepest, now)
    assert now == 0
    return deepest


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_tags_nest_once_at_most(path: Path) -> None:
    assert depth(lines(path)) <= 1


def test_depth_counts() -> None:
    assert depth(["//% if a", "//% for b in c", "//% endfor", "//% endif"]) == 2


@pytest.mark.parametrize("path", DEVICE, ids=name)
def test_only_kgens_headers_are_included(path: Path) -> None:
    names = re.findall(r"^\s*#\s*include\s*(.*)$", path.read_text(), re.MULTILINE)
    plain = {f'"{name(header)}"' for header in DEVICE if header.suffix == ".cuh"}
    assert {each for each in names if "${" not in each} <= plain
