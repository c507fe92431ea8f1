"""Entries on disk: whole, verified, private, and set aside when damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from kgen.codegen.cache import store
from kgen.codegen.cache.store import DAY, Cache, Entry, Problem

from ...helpers.entries import IMAGE, OPTIONS, flip, meta, named, put
from ...helpers.places import ROOT

KEY = named().key


def problem(cache: Cache, key: str = KEY) -> Problem:
    found = cache.get(key)
    assert isinstance(found, Problem)
    return found


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "cache")
    assert cache.get(KEY) is None
    path = cache.put(KEY, IMAGE, meta())
    assert path == cache.root / KEY / f"{KEY}.cubin"
    assert path.read_bytes() == IMAGE
    entry = Cache(cache.root).get(KEY)
    assert isinstance(entry, Entry)
    assert (entry.key, entry.path, entry.image) == (KEY, path, IMAGE)
    expected = {**meta(), "options": list(OPTIONS), "key": KEY, "bytes": len(IMAGE)}
    assert entry.meta == expected
    assert names(cache.root) == [KEY]


def test_the_default_root_is_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "mine"))
    assert Cache().root == tmp_path / "mine"


def test_only_the_owner_may_read_under_any_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        path = put(Cache(tmp_path / "deep" / "cache"))
    finally:
        os.umask(umask)
    folders = [tmp_path / "deep", tmp_path / "deep" / "cache", path]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}


def _edit(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": "other"}))


def _fields(path: Path) -> None:
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"fields": facts["fields"] | {"arch": "0" * 64}}))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("cubin", flip, r"checksum: expected [0-9a-f]{16}, found [0-9a-f]{16}"),
    ("cubin", lambda path: path.write_bytes(b""), "size: expected 2048 bytes, found 0 bytes"),
    ("cubin", lambda path: path.write_bytes(IMAGE[:-1]), "size: expected 2048 .* found 2047"),
    ("cubin", Path.unlink, "cubin: expected a file, found none"),
    ("json", Path.unlink, "json: expected a file, found none"),
    ("json", _edit, "checksum: expected"),
    ("json", _fields, f"key: expected {KEY[:16]}, found"),
    ("json", lambda path: path.write_text(""), "metadata: expected JSON with all facts, found"),
    ("json", lambda path: path.write_text("{"), "metadata: expected JSON with all facts, found"),
    ("json", lambda path: path.write_text("{}"), "metadata: expected JSON .* found KeyError"),
    ("json", lambda path: path.write_text("[1]"), "metadata: expected JSON with all facts, found"),
    ("json", lambda path: path.write_bytes(b"\xff"), "metadata: expected JSON with all facts, f"),
]


@pytest.mark.parametrize(("suffix", "damage", "text"), DAMAGES)
def test_a_damaged_entry_says_what_was_expected_and_found_and_is_set_aside(
    tmp_path: Path, suffix: str, damage: Callable[[Path], object], text: str
) -> None:
    cache = Cache(tmp_path)
    folder = put(cache)
    damage(folder / f"{KEY}.{suffix}")
    found = problem(cache)
    assert (found.path, found.state) == (folder, "damaged")
    assert re.search(text, found.text), found.text
    assert list(cache.entries()) == []
    put(cache)
    assert isinstance(cache.get(KEY), Entry)
    aside, key = names(tmp_path)
    assert aside.startswith(f".aside-{KEY}") and key == KEY
    assert cache.leftovers() == [tmp_path / aside]


@pytest.mark.parametrize("damage", [_folder, _pipe])
def test_what_is_no_file_is_not_read(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    cache = Cache(tmp_path)
    damage(put(cache) / f"{KEY}.cubin")
    assert problem(cache).state == "unreadable"
    with pytest.raises(PermissionError, match="cannot be read"):
        put(cache)


def test_a_file_in_the_place_of_an_entry_is_set_aside(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / KEY).write_text("in the way")
    assert problem(cache).text == "entry: expected a folder, found a file"
    put(cache)
    assert isinstance(cache.get(KEY), Entry)


def test_swapped_entries_are_damaged(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    one, other = put(cache), put(cache, 1)
    for suffix in ("cubin", "json"):
        shutil.copy(one / f"{one.name}.{suffix}", other / f"{other.name}.{suffix}")
    text = f"key: expected {other.name[:16]}, found {one.name[:16]}"
    assert problem(cache, other.name).text == text
    assert [entry.key for entry in cache.entries()] == [one.name]


def test_a_sound_entry_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    inode = put(cache).stat().st_ino
    assert put(cache).stat().st_ino == inode
    assert names(tmp_path) == [KEY]


def test_a_put_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Cache(tmp_path).put(KEY, IMAGE, {"config": object()})
    assert names(tmp_path) == []


def test_readers_and_writers_meet_whole_entries_only(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    failures: list[BaseException] = []
    seen: list[object] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                if number % 2:
                    put(cache)
                    if number == 1:
                        cache.remove(KEY)
                elif found := cache.get(KEY):
                    seen.append(found)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all(isinstance(found, Entry) and found.image == IMAGE for found in seen)
    put(cache)
    assert names(tmp_path) == [KEY]


def test_an_entry_that_goes_while_another_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename that finds a place taken and the look at what took it."""
    cache, look = Cache(tmp_path), Cache._look
    put(cache)

    def removed(self: Cache, key: str, name: str = "") -> object:
        monkeypatch.setattr(Cache, "_look", look)
        cache.remove(KEY)
        found = look(self, key, name)
        put(cache)  # by a third one, before the second rename
        return found

    monkeypatch.setattr(Cache, "_look", removed)
    put(cache)
    assert names(tmp_path) == [KEY]


def test_an_entry_that_goes_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, read = Cache(tmp_path), store._read
    put(cache)

    def removed(path: Path, here: int) -> bytes:
        cache.remove(KEY)
        return read(path, here)

    monkeypatch.setattr(store, "_read", removed)
    assert cache.get(KEY) is None


def test_a_damaged_entry_that_is_replaced_before_it_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, move = Cache(tmp_path), store._move
    (put(cache) / f"{KEY}.cubin").write_bytes(b"")

    def late(folder: Path, prefix: str) -> Path | None:
        monkeypatch.setattr(store, "_move", move)
        put(cache)  # by another one, which sets the damaged one aside
        return move(folder, prefix)

    monkeypatch.setattr(store, "_move", late)
    put(cache)
    aside, key = names(tmp_path)
    assert key == KEY and aside.startswith(store.ASIDE)
    assert (tmp_path / aside / f"{KEY}.cubin").read_bytes() == b""


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_an_unwritable_root_raises(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / root)
    assert cache.get(KEY) is None
    assert list(cache.entries()) == [] and not cache.known() and not cache.leftovers()
    with pytest.raises(OSError, match="file"):
        put(cache)
    assert (tmp_path / "file").read_text() == "in the way"


def test_entries_are_in_the_order_of_their_keys(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folders = sorted(put(cache, number) for number in range(3))
    flip(folders[1] / f"{folders[1].name}.cubin")
    found = list(cache.examine())
    assert [isinstance(each, Entry) for each in found] == [True, False, True]
    keys = [folder.name for folder in folders]
    assert cache.known() == keys
    assert [entry.key for entry in cache.entries()] == [keys[0], keys[2]]


def test_a_use_is_noted_once_a_day(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder = put(cache)
    made = folder.stat().st_mtime
    cache.touch(KEY)
    assert folder.stat().st_mtime == made
    os.utime(folder, (made - 2 * DAY, made - 2 * DAY))
    cache.touch(KEY)
    assert folder.stat().st_mtime >= made
    cache.touch("0" * 64)


def test_nothing_pickles() -> None:
    modules = (ROOT / "codegen").rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    assert not re.search(
        r"\b(pickle|marshal|shelve|dill)\.loads?\b|import (pickle|marshal|shelve|dill)", text
    )
