from __future__ import annotations

import dataclasses
import json
import os
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from kgen.codegen import cache as module
from kgen.codegen.cache import Cache, key
from kgen.codegen.errors import CacheWarning
from kgen.codegen.render import Source
from kgen.codegen.schema import VERSION

SOURCE = Source("query-h8-b64.cu", "query.cu.j2", "query", "text", (("a.cuh", "A"), ("b.cuh", "B")))
OPTIONS = ("--one", "--two")
KEY = key(SOURCE, "sm_90a", OPTIONS, "13.5")
IMAGE = bytes(range(256)) * 8
META = {"config": "query-h8-b64", "options": OPTIONS, "seconds": 0.25}


def _changed(**fields: object) -> str:
    return key(dataclasses.replace(SOURCE, **fields), "sm_90a", OPTIONS, "13.5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        lambda: _changed(text="Text"),
        lambda: _changed(headers=(("a.cuh", "A"),)),
        lambda: _changed(headers=(("a.cuh", "A"), ("b.cuh", "C"))),
        lambda: _changed(headers=(("a.cuh", "A"), ("c.cuh", "B"))),
        lambda: _changed(headers=(("a.cuh", "Ab.cuh"), ("", "B"))),
        lambda: _changed(text="tex", headers=(("ta.cuh", "A"), ("b.cuh", "B"))),
        lambda: key(SOURCE, "sm_90b", OPTIONS, "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--two", "--one"), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--one--two",), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--oneoption--two",), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--one",), "13.5"),
        lambda: key(SOURCE, "sm_90a", OPTIONS, "13.6"),
        lambda: key(SOURCE, "sm_90a1", OPTIONS, "3.5"),
        lambda: key(SOURCE, "sm_90a", (*OPTIONS, "arch"), "13.5"),
    ],
)
def test_every_part_of_the_content_changes_the_key(other: Callable[[], str]) -> None:
    assert other() != KEY


def test_the_schema_version_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    assert key(SOURCE, "sm_90a", OPTIONS, "13.5") != KEY


def test_names_that_reach_no_cubin_do_not_change_the_key() -> None:
    assert _changed(name="other.cu", template="other.cu.j2") == KEY


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "cache")
    assert cache.get(KEY) is None
    path = cache.put(KEY, IMAGE, META)
    assert path == cache.root / KEY / f"{KEY}.cubin"
    assert path.read_bytes() == IMAGE
    entry = Cache(cache.root).get(KEY)
    assert entry is not None
    assert (entry.key, entry.path, entry.image) == (KEY, path, IMAGE)
    expected = {**META, "options": list(OPTIONS), "key": KEY, "bytes": len(IMAGE)}
    assert entry.meta == expected
    assert [entry.name for entry in cache.root.iterdir()] == [KEY]


def test_the_default_root_is_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "mine"))
    assert Cache().root == tmp_path / "mine"


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        cache = Cache(tmp_path / "cache")
        path = cache.put(KEY, IMAGE, META)
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (cache.root, path.parent)]
    assert modes == [0o700, 0o700]
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def _edit(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 0.0}))


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("cubin", _flip),
        ("cubin", lambda path: path.write_bytes(IMAGE[:-1])),
        ("cubin", Path.unlink),
        ("json", Path.unlink),
        ("json", _edit),
        ("json", lambda path: path.write_text("{")),
        ("json", lambda path: path.write_text("{}")),
        ("json", lambda path: path.write_text("[1]")),
        ("json", lambda path: path.write_bytes(b"\xff")),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(
    tmp_path: Path, suffix: str, damage: Callable[[Path], object]
) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, IMAGE, META)
    damage(tmp_path / KEY / f"{KEY}.{suffix}")
    with pytest.warns(CacheWarning, match=KEY) as caught:
        assert cache.get(KEY) is None
    assert len(caught) == 1
    cache.put(KEY, IMAGE, META)
    entry = cache.get(KEY)
    assert entry is not None and entry.image == IMAGE
    assert [each.name for each in tmp_path.iterdir()] == [KEY]


def test_a_sound_entry_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    inode = cache.put(KEY, IMAGE, META).stat().st_ino
    assert cache.put(KEY, IMAGE, META | {"seconds": 9.0}).stat().st_ino == inode


def test_a_put_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Cache(tmp_path).put(KEY, IMAGE, {"config": object()})
    assert list(tmp_path.iterdir()) == []


def test_readers_and_writers_meet_whole_entries_only(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    failures: list[BaseException] = []
    seen: list[bool] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                if number % 2:
                    cache.put(KEY, IMAGE, META)
                    if number == 1:
                        cache.clear()
                elif entry := cache.get(KEY):
                    seen.append(entry.image == IMAGE)
        except BaseException as error:
            failures.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == [] and all(seen)
    cache.put(KEY, IMAGE, META)
    assert [each.name for each in tmp_path.iterdir()] == [KEY]


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_an_unwritable_root_raises(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / root)
    assert cache.get(KEY) is None
    assert list(cache.entries()) == [] and cache.clear() == 0
    with pytest.raises(OSError, match="file"):
        cache.put(KEY, IMAGE, META)
    assert (tmp_path / "file").read_text() == "in the way"


def test_entries_are_the_sound_ones_by_key(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    keys = sorted(key(SOURCE, "sm_90a", OPTIONS, str(number)) for number in range(3))
    for each in reversed(keys):
        cache.put(each, IMAGE, META)
    _flip(tmp_path / keys[1] / f"{keys[1]}.cubin")
    with pytest.warns(CacheWarning):
        assert [entry.key for entry in cache.entries()] == [keys[0], keys[2]]


def test_clear_removes_entries_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, IMAGE, META)
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "abc").mkdir()
    assert cache.clear() == 1
    assert cache.get(KEY) is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["abc", "notes"]
