"""Installed packages: found, checked, used before the caches, and passed over with a reason."""

from __future__ import annotations

import dataclasses
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen.build import build
from kgen.codegen.cache import installed, keys
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.errors import CacheWarning, CompileError, MissingKernelError
from kgen.codegen.schema import Gate, Query, QueryNorm

from ...helpers import cubins, packaged

pytestmark = pytest.mark.nvrtc

PATCH = pytest.MonkeyPatch
CONFIG, OTHER = QueryNorm(batch=8), Gate(heads=1, batch=8)
MISSING = QueryNorm(batch=9, release="end")
CODE = "query_norm_row1_release_start"
CUBIN = f"kgen_cubins/cubins/{CODE}-sm_90a.cubin"


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    return packaged.install(packaged.package(folder / "dist"), folder / "site")


@pytest.fixture
def site(site_packages: Path, tmp_path: Path, monkeypatch: PATCH) -> Path:
    """A copy of the installation that this process imports from, and a cache of its own."""
    copy = tmp_path / "site"
    shutil.copytree(site_packages, copy)
    monkeypatch.syspath_prepend(copy)
    monkeypatch.setattr(installed, "installed", installed.search)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    return copy


@pytest.fixture
def compiled(monkeypatch: PATCH) -> list[str]:
    """The targets that a stand-in for NVRTC has compiled for."""
    archs: list[str] = []

    def compile(source: Source, arch: str) -> Cubin:
        archs.append(arch)
        return cubins.compiled(source, arch)

    monkeypatch.setattr(nvrtc, "compile", compile)
    return archs


def unused(site: Path, *configs: Any) -> str:
    """The one warning of building ``configs`` twice, none of them from the package."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        origins = [build(config).origin for config in 2 * (configs or (CONFIG,))]
    assert "package" not in origins
    assert [warning.category for warning in caught] == [CacheWarning]
    text = str(caught[0].message)
    assert text.startswith("package kgen-cubins 0.1.0, not used: ")
    return text


def test_a_packaged_kernel_is_used_as_it_was_built(site: Path, compiled: list[str]) -> None:
    for arch in packaged.ARCHS:
        built = build(CONFIG, arch)
        assert built.origin == "package"
        assert built.path == site / f"kgen_cubins/cubins/{CODE}-{arch}.cubin"
        assert built.cubin.image == built.path.read_bytes()
        alone = build(CONFIG, arch, packaged=False)
        assert (alone.origin, alone.key) == ("compiled", built.key)
    assert compiled == list(packaged.ARCHS)


def test_a_cubin_serves_every_configuration_of_its_source(site: Path, compiled: list[str]) -> None:
    for batch in (4, 8, 9):
        built = build(QueryNorm(batch=batch))
        assert (built.origin, built.path) == ("package", site / CUBIN)
        assert built.plan.grid == (batch, 1, 1)
    assert compiled == []


def test_packages_come_before_caches_and_caches_before_compiling(
    site: Path, compiled: list[str]
) -> None:
    assert build(CONFIG, packaged=False).origin == "compiled"
    assert build(CONFIG).origin == "package"
    (site / CUBIN).unlink()
    with pytest.warns(CacheWarning, match="No such file"):
        assert build(CONFIG).origin == "cache"
    assert compiled == ["sm_90a"]


ISOLATED = """
import sys, kgen
from kgen.codegen import build, schema
for arch in ("sm_90a", "sm_100a"):
    for batch in (4, 8):
        assert build.build(schema.QueryNorm(batch=batch), arch).origin == "package"
kernel = kgen.query_norm(batch=8, arch="sm_90a")
assert kernel.artifact.origin == "package"
maps = open("/proc/self/maps").read()
assert "libnvrtc" not in maps and "libcuda.so" not in maps
assert "cuda.bindings" not in sys.modules and "kgen_cubins" not in sys.modules
kgen.query_norm(batch=8, arch="sm_120a")
"""


def test_without_jit_nothing_is_compiled_or_written_and_a_miss_says_what_there_is(
    site_packages: Path, tmp_path: Path
) -> None:
    def listing() -> list[tuple[Path, int]]:
        return [(path, path.stat().st_mtime_ns) for path in sorted(site_packages.rglob("*"))]

    before = listing()
    home = {"KGEN_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path), "KGEN_JIT": "0"}
    done = packaged.python(ISOLATED, site_packages, **home)
    assert "MissingKernelError: query_norm-b8 for sm_120a is in no package" in done.stderr
    held = "kgen-cubins 0.1.0: gate-h1-b8, query_norm-b4, query_norm-b8, for sm_100a, sm_90a"
    assert f"package searched: {held}" in done.stderr
    assert listing() == before and list(tmp_path.iterdir()) == []


def test_a_miss_names_the_nearest_entry_and_the_command_that_fixes_it(
    site: Path, compiled: list[str], monkeypatch: PATCH
) -> None:
    monkeypatch.setenv("KGEN_JIT", "0")
    with pytest.raises(MissingKernelError) as caught:
        build(MISSING, "sm_100a")
    text = str(caught.value)
    assert "query_norm-b9-no_release for sm_100a is in no package and no cache" in text
    nearest = f"{CODE} for sm_100a, in package kgen-cubins 0.1.0"
    assert f"nearest entry: {nearest}; here query_norm_row1_no_release" in text
    assert f"caches searched: {Cache().root}" in text
    command = "kgen build query_norm-b9-no_release --arch sm_100a"
    assert command in text and "kgen package query_norm-b9-no_release --arch sm_100a" in text
    assert packaged.kgen(*command.split()[1:], "--jit", "1").exit_code == 0
    assert build(MISSING, "sm_100a").origin == "cache"
    with pytest.raises(MissingKernelError, match="nearest entry: no query kernel is anywhere"):
        build(Query(heads=1, batch=1))
    with pytest.raises(
        MissingKernelError, match=r"nearest entry: \w+_no_release for sm_100a, in c"
    ):
        build(MISSING, "sm_103a")


def test_without_nvrtc_packages_serve_and_a_miss_is_a_miss(site: Path, monkeypatch: PATCH) -> None:
    def absent() -> str:
        raise CompileError("NVRTC was not found")

    monkeypatch.setattr(nvrtc, "nvrtc_build", absent)
    monkeypatch.setenv("KGEN_JIT", "0")
    assert build(CONFIG).origin == "package"
    with pytest.raises(MissingKernelError, match=r"query_norm-b9-no_\w+ for sm_90a"):
        build(MISSING)
    monkeypatch.setenv("KGEN_JIT", "1")
    with pytest.raises(CompileError, match="NVRTC was not found"):
        build(MISSING)


@pytest.mark.parametrize("place", [0, 5000, -1])
def test_a_flipped_byte_is_refused(site: Path, compiled: list[str], place: int) -> None:
    image = bytearray((site / CUBIN).read_bytes())
    image[place] ^= 1
    (site / CUBIN).write_bytes(image)
    text = unused(site)
    assert "query_norm-b8 for sm_90a is damaged" in text and str(site / CUBIN) in text
    assert text.count("SHA-256") == 1 and "install it anew" in text
    assert build(OTHER).origin == "package"
    assert compiled == ["sm_90a"]


@pytest.mark.parametrize("size", [0, 100])
def test_a_truncated_cubin_is_refused(site: Path, compiled: list[str], size: int) -> None:
    (site / CUBIN).write_bytes((site / CUBIN).read_bytes()[:size])
    assert "is damaged" in unused(site)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(kgen="0.0.9"), r"it was built by kgen 0\.0\.9, this is \d"),
        (lambda m: m.update(format=99), "its format is 99, this is 2"),
        (lambda m: m.update(schema=99), "its schema is 99, this is 1"),
        (lambda m: m.pop("kgen"), r"its manifest\.json cannot be read \(KeyError"),
        (lambda m: m.update(kernels=[{}]), r"its manifest\.json cannot be read \(KeyError"),
        (lambda m: m.update(kernels=7), r"its manifest\.json cannot be read \(TypeError"),
    ],
)
def test_a_foreign_package_is_not_used_and_the_reason_said_once(
    site: Path, compiled: list[str], monkeypatch: PATCH, change: Change, reason: str
) -> None:
    packaged.edit(site, change)
    assert re.search(reason, unused(site, CONFIG, OTHER))
    assert len(compiled) == 2
    monkeypatch.setenv("KGEN_JIT", "0")
    with pytest.raises(MissingKernelError, match=f"package searched: .*: not used, {reason}"):
        build(MISSING)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("params", "has another parameter layout"), ("code", "was built from another source")],
)
def test_another_layout_or_source_is_not_used_and_the_reason_said_once(
    site: Path, compiled: list[str], name: str, reason: str
) -> None:
    packaged.edit(site, lambda m: [each.update({name: "0" * 16}) for each in m["cubins"]])
    assert f"query_norm-b8 for sm_90a {reason}" in unused(site, CONFIG, OTHER)
    assert len(compiled) == 2


def test_a_kernel_with_damaged_facts_is_not_used(site: Path, compiled: list[str]) -> None:
    packaged.edit(site, lambda m: [each.pop("checksum") for each in m["cubins"]])
    assert "its manifest.json cannot be read (KeyError('checksum'))" in unused(site)


def test_an_edited_template_makes_the_package_stale(
    site: Path, compiled: list[str], monkeypatch: PATCH
) -> None:
    def edited(plan: Any) -> Source:
        source = render(plan)
        return dataclasses.replace(source, headers=(*source.headers, ("new.cuh", "// new\n")))

    monkeypatch.setattr(keys, "render", edited)
    assert "was built from another source" in unused(site)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_manifest_is_not_used(site: Path, compiled: list[str], content: bytes) -> None:
    (site / "kgen_cubins" / "manifest.json").write_bytes(content)
    assert "its manifest.json cannot be read" in unused(site)


def test_a_damaged_package_leaves_another_its_kernels(
    site: Path, tmp_path: Path, compiled: list[str], monkeypatch: PATCH
) -> None:
    wheel = packaged.package(tmp_path / "dist", "--name", "kgen-more", slugs=("query_norm-b8",))
    monkeypatch.setattr(installed, "_said", set())
    packaged.install(wheel, tmp_path / "more")
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert [package.name for package in installed.search()] == ["kgen-cubins", "kgen-more"]
    (site / CUBIN).write_bytes(b"damaged")
    with pytest.warns(CacheWarning, match="is damaged"):
        built = build(CONFIG)
    assert built.origin == "package" and built.path and "kgen_more" in built.path.parts


def test_many_kernels_are_held_in_one_line(site: Path) -> None:
    kernels = {(f"query_norm-b{n}", "sm_90a"): "code" for n in range(1, 11)}
    many = installed.Package("many", "1", site, {}, kernels)
    (line,) = installed.holdings([many])
    assert line.startswith("many 1: query_norm-b1, ") and line.endswith("b8 and 2 more, for sm_90a")
