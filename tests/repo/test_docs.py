"""What the docs say of the tree is so: the files that they name, their links, families, rooms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgen.codegen.schema import KERNELS

from ..helpers.places import ROOT
from .test_layers import ORDER

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
TREE = re.compile(r"(?:codegen|templates|tests|benchmarks|examples|docs|generated)/[\w./-]*\w/?")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
EXAMPLE = "scale"  # the family that CONTRIBUTING adds, and nobody has


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def headings(path: Path) -> list[str]:
    """The headings of a page; what looks like one in a code block is none."""
    prose = re.sub(r"^```.*?^```", "", text(path), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", prose, re.MULTILINE)


def anchor(heading: str) -> str:
    """How a link names a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {
        name for quoted in re.findall(r"`([^`\n]+)`", text(page)) for name in TREE.findall(quoted)
    }
    gone = {name for name in named if not (ROOT / name).exists()}
    assert {name for name in gone if EXAMPLE not in name} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for name, part in LINK.findall(text(page)):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), name
        assert not part or part in map(anchor, headings(target)), f"{name}#{part}"


def test_every_family_has_its_part_of_the_contract() -> None:
    words = {word for heading in headings(ROOT / "docs/kernels.md") for word in heading.split()}
    assert {name for name in KERNELS if name not in words} == set()


def test_the_table_of_rooms_is_the_order_of_imports() -> None:
    section = text(ROOT / "CONTRIBUTING.md").split("## Rooms")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    rooms = [tuple(re.findall(r"`(\w+)/?`", cell)) for cell in cells]
    assert list(map(sorted, rooms)) == list(map(sorted, ORDER))
