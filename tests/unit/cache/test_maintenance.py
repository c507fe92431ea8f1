"""Verifying, pruning and emptying a cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kgen.codegen.cache import maintenance
from kgen.codegen.cache.store import DAY, Cache
from kgen.codegen.errors import ConfigError

from ...helpers.entries import flip, put


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Three kernels, unused for 0, 1 and 2 days; their sizes are all alike."""
    made = Cache(tmp_path / "cache")
    for number in range(3):
        folder, moment = put(made, number), time.time() - number * DAY - 1
        os.utime(folder, (moment, moment))
    return made


def entry_size(cache: Cache) -> int:
    return sum(file.stat().st_size for file in (cache.root / cache.known()[0]).iterdir())


def unused(cache: Cache) -> list[int]:
    """The ages of what is left, in days."""
    ages = (time.time() - (cache.root / key).stat().st_mtime for key in cache.known())
    return sorted(round(age / DAY) for age in ages)


def test_the_longest_unused_go_first(cache: Cache) -> None:
    size = entry_size(cache)
    removed = maintenance.prune(cache, max_size=2 * size + 1)
    assert [round(each.unused / DAY) for each in removed] == [2]
    assert removed[0].bytes == size
    assert unused(cache) == [0, 1]
    assert len(maintenance.prune(cache, max_size=0)) == 2
    assert list(cache.root.iterdir()) == []


def test_what_is_unused_for_long_goes(cache: Cache) -> None:
    assert len(maintenance.prune(cache, older_than=1.5 * DAY)) == 1
    assert unused(cache) == [0, 1]
    assert maintenance.prune(cache) == []


def test_prune_removes_leftovers_but_none_that_may_be_in_use(cache: Cache) -> None:
    folder = cache.root / cache.known()[0]
    flip(next(folder.glob("*.cubin")))
    for number in range(3):
        put(cache, number)
    for name, age in ((".new-old", 2 * 3600), (".new-young", 0), (".lock-old", 2 * 3600)):
        (cache.root / name).mkdir() if name.startswith(".new") else (cache.root / name).touch()
        os.utime(cache.root / name, (time.time() - age,) * 2)
    assert len(cache.leftovers()) == 4
    maintenance.prune(cache)
    assert [path.name for path in cache.leftovers()] == [".new-young"]
    assert len(cache.known()) == 3


def test_verify_finds_what_is_damaged_untrusted_and_set_aside(cache: Cache) -> None:
    first, second, _ = (cache.root / key for key in cache.known())
    flip(next(first.glob("*.cubin")))
    second.chmod(0o777)
    found = list(maintenance.verify((cache,)))
    assert [each.state for each in found] == ["damaged", "untrusted", "sound"]
    assert "expected" in found[0].text and str(first) == found[0].path
    second.chmod(0o700)
    for number in range(3):
        put(cache, number)
    found = list(maintenance.verify((cache,)))
    assert [each.state for each in found] == ["sound"] * 3 + ["aside"]


def test_an_untrusted_root_is_one_finding(cache: Cache) -> None:
    cache.root.chmod(0o777)
    assert [each.state for each in maintenance.verify((cache,))] == ["untrusted"]


def test_clear_removes_entries_and_nothing_else(cache: Cache) -> None:
    (cache.root / "notes").write_text("mine")
    (cache.root / "abc").mkdir()
    assert maintenance.clear(cache) == 3
    assert sorted(each.name for each in cache.root.iterdir()) == ["abc", "notes"]
    assert maintenance.clear(Cache(cache.root / "none")) == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000", 1000), ("2K", 2048), ("1.5MB", 3 << 19), ("2 GiB", 2 << 30), ("1t", 1 << 40)],
)
def test_sizes(text: str, value: int) -> None:
    assert maintenance.size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("5s", 5), ("10m", 600), ("1.5h", 5400), ("2w", 14 * DAY)]
)
def test_spans(text: str, value: float) -> None:
    assert maintenance.span(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "5X", "1e9", "30"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--older-than: got"):
        maintenance.span(text)
    if text != "30":
        with pytest.raises(ConfigError, match="--max-size: got"):
            maintenance.size(text)
