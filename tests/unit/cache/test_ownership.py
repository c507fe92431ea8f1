"""What is not loaded: symlinks, and what others own or can write."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kgen.codegen.cache import lookup
from kgen.codegen.cache.store import Cache, Entry, Problem
from kgen.codegen.errors import CacheWarning

from ...helpers.entries import named, put

KEY = named().key
OTHER = 12345  # a user


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``path`` alone be another user's: root gives it away, others take another uid."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1)
        return
    kept = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = kept(descriptor)
        if not os.path.samestat(found, path.stat()):
            return found
        return os.stat_result((*found[:4], OTHER, *found[5:10]))

    monkeypatch.setattr(os, "fstat", fstat)


def root(cache: Cache) -> Path:
    return cache.root


def entry(cache: Cache) -> Path:
    return cache.root / KEY


def cubin(cache: Cache) -> Path:
    return entry(cache) / f"{KEY}.cubin"


def metadata(cache: Cache) -> Path:
    return entry(cache) / f"{KEY}.json"


PARTS = pytest.mark.parametrize("part", [root, entry, cubin, metadata])
Part = Callable[[Cache], Path]


def linked(path: Path) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    put(made)
    return made


def check(cache: Cache, path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cache.get(KEY)
    assert isinstance(found, Problem), found
    assert (found.path, found.state) == (path, "untrusted")
    assert re.search(text, found.text)
    assert "KGEN_CACHE_TRUST=any" in found.remedy
    with pytest.warns(CacheWarning, match=re.escape(str(path))) as caught:
        assert [lookup.find(KEY, (cache,)) for _ in range(3)] == [None] * 3
    assert len(caught) == 1
    monkeypatch.setenv("KGEN_CACHE_TRUST", "any")
    assert isinstance(cache.get(KEY), Entry)


@PARTS
def test_a_symlink_is_not_loaded(cache: Cache, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(part(cache))
    check(cache, part(cache), "is a symbolic link", monkeypatch)


@PARTS
@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_what_others_can_write_is_not_loaded(
    cache: Cache, part: Part, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = part(cache)
    path.chmod(path.stat().st_mode | bits)
    check(cache, path, r"is writable by group or others \(mode 0[0-7]{3}\)", monkeypatch)


@PARTS
def test_what_another_user_owns_is_not_loaded(
    cache: Cache, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(part(cache), monkeypatch)
    check(cache, part(cache), f"is owned by uid {OTHER}, neither by you", monkeypatch)


def test_roots_files_are_fine_for_all(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make root's files")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert isinstance(cache.get(KEY), Entry)


def test_what_all_may_read_is_fine(cache: Cache) -> None:
    for part in (root, entry):
        part(cache).chmod(0o755)
    for part in (cubin, metadata):
        part(cache).chmod(0o644)
    assert isinstance(cache.get(KEY), Entry)


@pytest.mark.parametrize("spoil", [linked, lambda path: path.chmod(0o777)])
def test_an_untrusted_cache_is_not_written_either(
    cache: Cache, spoil: Callable[[Path], object]
) -> None:
    spoil(cache.root)
    with pytest.warns(CacheWarning) as caught:
        assert lookup.find(named(1).key, (cache,)) is None
        with lookup.turn(named(1).key, cache):
            assert lookup.store(cache, named(1).key, b"", {}) is None
    assert len(caught) == 1
    assert [each.name for each in cache.root.iterdir()] == [KEY]


def test_an_untrusted_entry_is_left_where_it_is(cache: Cache) -> None:
    linked(entry(cache))
    with pytest.raises(PermissionError, match="is a symbolic link"):
        put(cache)
    assert entry(cache).is_symlink()
