from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen.build import Result, build, build_many
from kgen.codegen.cache import keys
from kgen.codegen.cache.store import Cache, Entry
from kgen.codegen.compiler import jobs, nvrtc
from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.compiler.jobs import job_count
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.errors import (
    CacheWarning,
    CompileError,
    ConfigError,
    MissingKernelError,
    PlanError,
)
from kgen.codegen.plan import Plan
from kgen.codegen.schema import Query

from ..helpers.cubins import RESOURCES, compiled

CONFIG = Query(heads=8, batch=8)


def distinct(heads: Iterable[int], **fields: Any) -> list[Query]:
    """Configurations none of which share a cubin: of several ranks, heads are in the code."""
    return [Query(heads=each, batch=8, dcp=2, **fields) for each in heads]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    return Cache()


class Compiler:
    """Stands in for NVRTC: counts what it compiles, and how much at a time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.inside: Callable[[Source], object] = lambda source: None

    def compile(self, source: Source, arch: str) -> Cubin:
        with self.lock:
            self.names.append(source.name)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.inside(source)
        finally:
            with self.lock:
                self.running -= 1
        return compiled(source, arch, log="a warning")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler_ = Compiler()
    monkeypatch.setattr(nvrtc, "compile", compiler_.compile)
    return compiler_


def test_the_second_build_is_a_hit_with_the_same_cubin(cache: Cache, fake: Compiler) -> None:
    first, second = build(CONFIG), build(CONFIG)
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert fake.names == ["query_rows8.cu"]
    assert first.cubin == second.cubin
    assert (first.key, first.path, first.plan) == (second.key, second.path, second.plan)
    assert first.path == cache.root / first.key / f"{first.key}.cubin"
    assert first.path.read_bytes() == first.cubin.image
    assert first.cubin.resources == RESOURCES and first.seconds > 0


def test_the_entry_says_what_it_is(cache: Cache, fake: Compiler) -> None:
    built = build(CONFIG, "sm_100a")
    entry = cache.get(built.key)
    assert isinstance(entry, Entry)
    assert entry.meta["name"] == "query_rows8" and entry.meta["arch"] == "sm_100a"
    assert entry.meta["options"] == list(nvrtc.options("sm_100a"))
    assert entry.meta["nvrtc"] == nvrtc.nvrtc_build()
    assert entry.meta["resources"] == dataclasses.asdict(RESOURCES)


def test_targets_schedules_and_sources_have_their_own_entries(
    cache: Cache, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {build(CONFIG).key, build(CONFIG, "sm_100a").key, build(Query(heads=8, batch=16)).key}

    def edited(plan: Plan) -> Source:
        source = render(plan)
        return dataclasses.replace(source, text=source.text + "// edited\n")

    monkeypatch.setattr(keys, "render", edited)
    assert build(CONFIG).origin == "compiled"
    assert len(found) == 3 and len(list(cache.entries())) == 4


def test_the_default_target_is_the_setting(
    cache: Cache, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build(CONFIG).plan.target.name == "sm_90a"
    monkeypatch.setenv("KGEN_ARCH", "sm_103a")
    assert build(CONFIG).cubin.arch == "sm_103a"
    assert build(CONFIG, "sm_90").cubin.arch == "sm_90a"


def test_a_given_cache_is_used(cache: Cache, fake: Compiler, tmp_path: Path) -> None:
    other = Cache(tmp_path / "other")
    path = build(CONFIG, cache=other).path
    assert path is not None and path.is_relative_to(other.root)
    assert not cache.root.exists()


def test_read_only_caches_are_asked_in_order_and_never_written(
    cache: Cache, fake: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Cache(tmp_path / "far")
    stored = build(CONFIG, cache=far)
    monkeypatch.setenv("KGEN_CACHE_PATH", f"{tmp_path / 'none'}:{far.root}")
    found = build(CONFIG)
    assert (found.origin, found.path) == ("cache", stored.path)
    build(Query(heads=1, batch=16))
    assert len(list(far.entries())) == 1 and len(list(cache.entries())) == 1
    assert not (tmp_path / "none").exists()


def test_a_damaged_entry_is_built_anew(cache: Cache, fake: Compiler) -> None:
    path = build(CONFIG).path
    assert path is not None
    path.write_bytes(b"damaged")
    with pytest.warns(CacheWarning, match="damaged"):
        assert build(CONFIG).origin == "compiled"
    assert build(CONFIG).origin == "cache"


def test_an_unwritable_cache_warns_once_and_builds_in_memory(
    fake: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    configs = distinct(range(1, 9))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = build_many(configs, ["sm_90a"])
        again = build(configs[0])
    assert [str(w.category) for w in caught] == [str(CacheWarning)]
    assert str(tmp_path / "file" / "cache") in str(caught[0].message)
    assert "KGEN_CACHE_DIR" in str(caught[0].message)
    assert all(r.artifact and r.artifact.path is None and r.artifact.cubin.image for r in results)
    assert (again.origin, again.path) == ("compiled", None)


def test_without_jit_only_the_cache_serves(
    cache: Cache, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(CONFIG)
    monkeypatch.setenv("KGEN_JIT", "0")
    assert build(CONFIG).origin == "cache"
    with pytest.raises(MissingKernelError, match="query-h6-b16 for sm_90a is in no package"):
        build(Query(heads=6, batch=16))
    assert fake.names == ["query_rows8.cu"]


def test_sources_headers_and_cubins_are_dumped(
    cache: Cache, fake: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(CONFIG)
    monkeypatch.setenv("KGEN_DUMP_DIR", str(tmp_path / "dump" / "here"))
    built = build(CONFIG)
    source = render(built.plan)
    dump = tmp_path / "dump" / "here"
    assert (dump / "query_rows8-sm_90a.cu").read_text() == source.text
    assert (dump / "query_rows8-sm_90a.cubin").read_bytes() == built.cubin.image
    assert source.headers
    assert all((dump / name).read_text() == text for name, text in source.headers)


def test_a_failing_source_is_dumped_too(
    cache: Cache, fake: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGEN_DUMP_DIR", str(tmp_path / "dump"))
    fake.inside = _refuse
    with pytest.raises(CompileError):
        build(CONFIG)
    assert (tmp_path / "dump" / "query_rows8-sm_90a.cu").exists()


def test_an_unwritable_dump_names_the_setting(
    cache: Cache, fake: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KGEN_DUMP_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"KGEN_DUMP_DIR: got .*file'; must be a folder"):
        build(CONFIG)


def test_the_log_is_off_unless_asked_for(
    cache: Cache,
    fake: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build(CONFIG)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("KGEN_LOG", "info")
    build(CONFIG)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kgen: query-h8-b8 sm_90a: cache in 0.")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("KGEN_LOG", "debug")
    built = build(CONFIG)
    err = capsys.readouterr().err
    assert built.key in err and "registers=90" in err and "a warning" in err


def _refuse(source: Source) -> None:
    raise CompileError(f"{source.name} is refused")


def test_a_failure_is_stored_nowhere_and_repeats(cache: Cache, fake: Compiler) -> None:
    fake.inside = _refuse
    for _ in range(2):
        with pytest.raises(CompileError, match=r"query_rows8\.cu is refused"):
            build(CONFIG)
    assert len(fake.names) == 2 and list(cache.root.iterdir()) == []
    fake.inside = lambda source: None
    assert build(CONFIG).origin == "compiled"


def test_kernels_that_share_a_cubin_are_compiled_once(cache: Cache, fake: Compiler) -> None:
    configs = [Query(heads=heads, batch=batch) for heads in (6, 8) for batch in (1, 8, 16)]
    told: list[Result] = []
    results = build_many(configs, ["sm_100a"], on_done=told.append)
    made = [result.artifact for result in results if result.artifact]
    assert [each.plan.config for each in made] == configs and len(told) == len(configs)
    assert sorted(fake.names) == ["query_ksplit16x2.cu", "query_rows8.cu"]
    assert Counter(each.origin for each in made) == {"compiled": 2, "shared": 4}
    assert len({each.key for each in made}) == len({each.cubin.image for each in made}) == 2
    assert build(Query(heads=1, batch=2), "sm_100a").origin == "cache"


def test_many_come_in_order_and_one_failure_stops_no_other(cache: Cache, fake: Compiler) -> None:
    def fail(source: Source) -> None:
        if "_h2_" in source.name:
            _refuse(source)
        if "_h3_" in source.name:
            raise ZeroDivisionError

    fake.inside = fail
    configs = distinct((1, 2, 3, 4), scheme="ksplit", transport="unicast")
    told: list[Result] = []
    tellers = set()

    def tell(result: Result) -> None:
        told.append(result)
        tellers.add(threading.current_thread())

    results = build_many(configs, ["sm_90a", "sm_120a"], on_done=tell)
    expected = [(config, arch) for config in configs for arch in ("sm_90a", "sm_120a")]
    assert [(result.config, result.arch) for result in results] == expected
    errors = [type(result.error) for result in results if result.arch == "sm_90a"]
    assert errors == [type(None), CompileError, ZeroDivisionError, type(None)]
    assert all(isinstance(r.error, PlanError) for r in results if r.arch == "sm_120a")
    assert all((result.artifact is None) == (result.error is not None) for result in results)
    assert sorted(map(id, told)) == sorted(map(id, results))
    assert tellers == {threading.current_thread()}


@pytest.mark.parametrize(
    ("cores", "megabytes", "asked", "count"),
    [
        (2, 8192, None, 2),
        (2, 8192, 1, 1),
        (2, 8192, 64, 2),
        (16, 2100, None, 4),
        (16, 2100, 8, 4),
        (16, 2100, 3, 3),
        (4, 100, None, 1),
        (4, 0, 4, 1),
    ],
)
def test_jobs_exceed_neither_cores_nor_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, megabytes: int, asked: int | None, count: int
) -> None:
    monkeypatch.setattr(jobs, "cores", lambda: cores)
    monkeypatch.setattr(jobs, "memory", lambda: megabytes << 20)
    assert job_count(asked) == count


@pytest.mark.parametrize("asked", [0, -1])
def test_no_jobs_are_refused(asked: int) -> None:
    with pytest.raises(ConfigError, match=f"jobs: got {asked}; allowed is an integer from 1"):
        build_many([CONFIG], ["sm_90a"], jobs=asked)


def test_jobs_run_side_by_side_and_no_more_of_them(
    cache: Cache, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "cores", lambda: 3)
    together = threading.Barrier(3)
    fake.inside = lambda source: together.wait(20)
    results = build_many(distinct(range(1, 7)), ["sm_90a"], jobs=9)
    assert [result.error for result in results] == [None] * 6
    assert fake.most == 3


def test_an_interrupt_cancels_what_has_not_begun(cache: Cache, fake: Compiler) -> None:
    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_many(distinct(range(1, 100)), ["sm_90a"], jobs=1, on_done=interrupt)
    assert len(fake.names) < 50


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_kernel_is_built_and_found_again(cache: Cache, arch: str) -> None:
    first, second = build(CONFIG, arch), build(CONFIG, arch)
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert first.cubin.image == second.cubin.image
    assert first.cubin.image.startswith(b"\x7fELF")
    assert first.cubin.resources == second.cubin.resources
    assert first.cubin.resources.spill_stores == first.cubin.resources.local_bytes == 0


@pytest.mark.nvrtc
def test_a_source_that_does_not_compile_says_so_each_time(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(plan: Plan) -> Source:
        source = render(plan)
        return dataclasses.replace(source, text=source.text + "int broken = missing;\n")

    monkeypatch.setattr(keys, "render", broken)
    texts = []
    for _ in range(2):
        with pytest.raises(CompileError, match=r"> +\d+ \| int broken = missing;") as caught:
            build(CONFIG)
        texts.append(str(caught.value))
    assert texts[0] == texts[1] and "template query" in texts[0]
    assert list(cache.root.iterdir()) == []


ISOLATED = """
import sys
from pathlib import Path
import kgen
from kgen.codegen import build, cache, compiler, errors, plan, settings, targets
from kgen.codegen.compiler import jobs, nvrtc, render
left = [str(path) for path in Path.cwd().rglob("*")]
assert left == [], left
from kgen.codegen.schema import Query
print(build.build(Query(heads=8, batch=8)).path)
loaded = {"cupy", "torch", "numpy"} & set(sys.modules)
assert not loaded, loaded
assert not any("libcuda.so" in line for line in open("/proc/self/maps"))
"""


@pytest.mark.nvrtc
def test_import_writes_nothing_and_build_touches_no_driver(tmp_path: Path) -> None:
    places = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    env = {name: value for name, value in os.environ.items() if not name.startswith("KGEN_")}
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED],
        cwd=tmp_path,
        env={**env, **places, "LD_DEBUG": "libs"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "libnvrtc.so" in done.stderr and "libcuda.so" not in done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "kgen")
    assert [path.name for path in tmp_path.iterdir()] == ["kgen"]


@pytest.mark.bench
@pytest.mark.skipif(jobs.cores() < 2, reason="one core")
def test_both_cores_are_busy(cache: Cache) -> None:
    build(CONFIG)
    wall, cpu = time.perf_counter(), time.process_time()
    results = build_many(distinct(range(10, 20)), ["sm_90a"], jobs=2)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert all(result.artifact for result in results)
    assert cpu / wall > 1.7
