"""Whatever befalls a cache, the kernel is returned: from memory if need be, with one warning."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen.build import Artifact, build
from kgen.codegen.cache import keys
from kgen.codegen.cache.store import Cache, Entry
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.errors import CacheWarning
from kgen.codegen.plan import plan
from kgen.codegen.schema import QueryNorm

from ...helpers.cubins import compiled
from ...helpers.entries import flip

CONFIG = QueryNorm(batch=8)
OTHER = 12345  # a user


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "compile", compiled)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def built(cache: Cache, warned: int = 0) -> tuple[Artifact, list[str]]:
    """Build twice, and be warned ``warned`` times in all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        artifact = build(CONFIG, cache=cache)
        build(CONFIG, cache=cache)
    assert artifact.cubin == compiled(render(artifact.plan), "sm_90a")
    assert len(caught) == warned, [str(each.message) for each in caught]
    assert all(each.category is CacheWarning for each in caught)
    return artifact, [str(each.message) for each in caught]


def left(cache: Cache) -> list[str]:
    return sorted(each.name for each in cache.root.iterdir())


def failing(function: Callable[..., Any], code: int, where: Callable[..., bool]) -> Any:
    """``function``, but for calls that ``where`` is true of."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if where(*args, **kwargs):
            raise OSError(code, os.strerror(code), str(args[0]))
        return function(*args, **kwargs)

    return call


def always(*_args: Any, **_kwargs: Any) -> bool:
    return True


def creates(_path: object, flags: int, *_args: Any, **_kwargs: Any) -> bool:
    return bool(flags & os.O_CREAT)


def test_a_lost_race_returns_what_the_other_published(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_last(source: Source, arch: str) -> Cubin:
        monkeypatch.setattr(nvrtc, "compile", compiled)
        build(CONFIG, cache=Cache(other))
        cache.root.mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(next(other.iterdir()), cache.root / next(other.iterdir()).name)
        return compiled(source, arch)

    other = cache.root.with_name("other")
    monkeypatch.setattr(nvrtc, "compile", compile_last)
    artifact, _ = built(cache)
    assert artifact.origin == "compiled" and artifact.path and artifact.path.is_file()
    assert left(cache) == [artifact.key]


def test_an_entry_that_cannot_be_seen_yet_is_no_loss(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(path: object, *_args: Any, **_kwargs: Any) -> bool:
        return len(Path(str(path)).name) == 64

    monkeypatch.setattr(os, "open", failing(os.open, errno.ENOENT, hidden))
    built(cache)
    monkeypatch.undo()
    assert len(list(cache.entries())) == 1


@pytest.mark.parametrize("code", [errno.EBUSY, errno.ESTALE, errno.EACCES])
def test_temporaries_that_cannot_be_removed_are_no_loss(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for name in ("unlink", "rmdir", "remove"):
        monkeypatch.setattr(os, name, failing(getattr(os, name), code, always))
    artifact, _ = built(cache)
    assert isinstance(cache.get(artifact.key), Entry)
    monkeypatch.undo()
    assert [name for name in left(cache) if name != artifact.key] == [f".lock-{artifact.key}"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize(("name", "where"), [("mkdir", always), ("open", creates)])
def test_a_cache_that_takes_nothing_new(
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    name: str,
    where: Callable[..., bool],
) -> None:
    monkeypatch.setattr(os, name, failing(getattr(os, name), code, where))
    artifact, (text,) = built(cache, 1)
    assert artifact.path is None
    assert str(cache.root) in text and os.strerror(code) in text and "KGEN_CACHE_DIR" in text


def test_a_disk_that_is_full_while_writing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = os.open

    def full(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(".cubin") and flags & os.O_CREAT:
            return kept("/dev/full", os.O_WRONLY)
        return kept(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
    artifact, (text,) = built(cache, 1)
    assert artifact.path is None and "No space left on device" in text
    assert left(cache) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EXDEV, errno.ESTALE])
def test_publishing_fails(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "rename", failing(os.rename, code, always))
    artifact, (text,) = built(cache, 1)
    assert artifact.path is None and str(cache.root) in text
    assert left(cache) == []


def test_without_locks(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(fcntl.flock, errno.ENOLCK, always))
    artifact, _ = built(cache)
    assert left(cache) == [artifact.key]


def test_an_entry_that_may_not_be_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(CONFIG, cache=cache)

    def cubins(path: object, *_args: Any, **_kwargs: Any) -> bool:
        return str(path).endswith(".cubin")

    monkeypatch.setattr(os, "open", failing(os.open, errno.EACCES, cubins))
    _, (text,) = built(cache, 1)
    assert str(cache.root) in text and "Permission denied" in text and "KGEN_CACHE_DIR" in text


def test_a_cache_that_may_not_be_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(CONFIG, cache=cache)

    def root(path: object, *_args: Any, **_kwargs: Any) -> bool:
        return path == cache.root

    monkeypatch.setattr(os, "open", failing(os.open, errno.EACCES, root))
    artifact, (text,) = built(cache, 1)
    assert artifact.path is None
    assert str(cache.root) in text and "Permission denied" in text and "KGEN_CACHE_DIR" in text


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flipped": flip,
    "no metadata": lambda path: path.with_suffix(".json").unlink(),
    "bad metadata": lambda path: path.with_suffix(".json").write_text('{"key": 1}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_rebuilt_with_one_warning(
    cache: Cache, damage: Callable[[Path], object]
) -> None:
    path = build(CONFIG, cache=cache).path
    assert path
    damage(path)
    artifact, (text,) = built(cache, 1)
    assert artifact.origin == "compiled" and artifact.path == path
    assert str(path.parent) in text and "expected" in text and "found" in text
    assert build(CONFIG, cache=cache).origin == "cache"
    assert left(cache)[0].startswith(".aside-")


def test_a_damaged_entry_of_a_read_only_root_is_passed_over(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Cache(tmp_path / "far")
    path = build(CONFIG, cache=far).path
    assert path
    flip(path)
    monkeypatch.setenv("KGEN_CACHE_PATH", str(far.root))
    artifact, (text,) = built(cache, 1)
    assert str(path.parent) in text and "remove it there" in text
    assert artifact.path and artifact.path.is_relative_to(cache.root)
    assert left(far) == [artifact.key]


def test_a_read_only_root_is_not_even_touched(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Cache(tmp_path / "far")
    path = build(CONFIG, cache=far).path
    assert path
    os.utime(path.parent, (0, 0))
    monkeypatch.setenv("KGEN_CACHE_PATH", str(far.root))
    assert build(CONFIG, cache=cache).path == path
    assert path.parent.stat().st_mtime == 0
    assert build(CONFIG, cache=far).path == path
    assert path.parent.stat().st_mtime > 0


def test_every_compiler_has_its_entry(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    origins = []
    for version in ("13.5+a", "13.5+b", "13.5+a", "13.5+b"):
        monkeypatch.setattr(nvrtc, "nvrtc_build", lambda version=version: version)
        origins.append(build(CONFIG, cache=cache).origin)
    assert origins == ["compiled", "compiled", "cache", "cache"]
    assert len(cache.known()) == 2


def test_where_one_starts_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    origins = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        origins.append(build(CONFIG).origin)
        assert list(Path.cwd().iterdir()) == []
    assert origins == ["compiled", "cache"]


def in_child(work: Callable[[], object]) -> None:
    """Run ``work`` as another user, in a child: files that only root may read are loaded by now."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return
    try:
        os.setgroups([])
        os.setresgid(OTHER, OTHER, OTHER)
        os.setresuid(OTHER, OTHER, OTHER)
        work()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.__stderr__, flush=True)
        os._exit(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot become another user")
@pytest.mark.parametrize("kind", ["a home", "a cache", "an entry"])
def test_another_user_meets_what_only_root_may_write_or_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = render(plan(CONFIG))
    monkeypatch.setattr(keys, "render", lambda _plan: source)
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        build(CONFIG, cache=Cache(Path(place) / "before"))  # the child may read no module
        cache = Cache(Path(place) / "home" / "cache")
        cache.root.parent.mkdir(mode=0o755)
        if kind != "a home":
            path = build(CONFIG, cache=cache).path
            assert path
            cache.root.chmod(0o755)
            if kind == "a cache":
                path.parent.rename(cache.root / ("0" * 64))

        def work() -> None:
            artifact, (text,) = built(cache, 1)
            assert artifact.path is None
            assert place in text and "KGEN_CACHE_DIR" in text

        in_child(work)


@pytest.mark.bench
@pytest.mark.nvrtc
def test_loading_a_cached_kernel_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kgen.codegen.schema import Query

    monkeypatch.undo()
    cache, config = Cache(tmp_path / "cache"), Query(heads=8, batch=64)
    build(config, cache=cache)
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        assert build(config, cache=cache).origin == "cache"
        seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[25] <= 0.003
