"""A cache that several users share: modes by the setting, and nobody's entries are moved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen.cache import ownership
from kgen.codegen.cache.keys import combine
from kgen.codegen.cache.store import Cache, Entry, Problem

FIELDS = {"text": "1" * 64}
KEY = combine(FIELDS)
META: dict[str, Any] = {
    "kernel": "query",
    "name": "query_rows8",
    "arch": "sm_90a",
    "nvrtc": "13.0",
    "options": ["-a"],
    "fields": FIELDS,
}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(
    ("setting", "modes"),
    [
        ("private", (0o700, 0o700, 0o600)),
        ("group", (0o2770, 0o750, 0o640)),
        ("all", (0o755, 0o755, 0o644)),
    ],
)
def test_modes(
    setting: str, modes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = os.umask(0)
    try:
        monkeypatch.setenv("KGEN_CACHE_MODE", setting)
        monkeypatch.setenv("KGEN_CACHE_TRUST", "any")
        path = Cache(tmp_path / "shared").put(KEY, b"image", META)
    finally:
        os.umask(mask)
    assert (mode(tmp_path / "shared"), mode(path.parent), mode(path)) == modes


def test_an_entry_that_another_keeps_private_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "shared")
    theirs = cache.put(KEY, b"image", META).parent

    def refuse(path: Path, parent: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ownership, "read", refuse)
    found = cache.get(KEY)
    assert isinstance(found, Problem) and found.state == "unreadable"
    with pytest.raises(OSError, match="cannot be read"):
        cache.put(KEY, b"image", META)
    monkeypatch.undo()
    assert isinstance(cache.get(KEY), Entry) and cache.leftovers() == []
    assert theirs.is_dir()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": 7},
        {"fields": "text"},
        {"fields": {"text": 7}},
        {"options": None},
        {"arch": ["sm_90a"]},
        {"kernel": {}},
    ],
)
def test_facts_of_another_type_are_damage(changed: dict[str, Any], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    folder = cache.root / KEY
    try:
        cache.put(KEY, b"image", META | changed)
    except (TypeError, ValueError):
        return  # cannot even be written
    found = cache.get(KEY)
    assert isinstance(found, Problem) and found.state == "damaged" and folder.is_dir()
    assert len(found.text) < 300


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "7", "null", '"x"', "{}", '{"a": ' + "1" * 600_000]
)
def test_metadata_that_is_no_metadata_is_damage_in_few_words(text: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    path = cache.put(KEY, b"image", META)
    path.with_suffix(".json").write_text(text)
    found = cache.get(KEY)
    assert isinstance(found, Problem) and found.state == "damaged" and len(found.text) < 400


def test_a_fifo_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    path = cache.put(KEY, b"image", META)
    path.unlink()
    os.mkfifo(path)
    found = cache.get(KEY)
    assert isinstance(found, Problem)
