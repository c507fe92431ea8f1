"""The host's compiler: found or refused in words; libraries built once, kept, cleared."""

from __future__ import annotations

import platform
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgen.codegen.cache import maintenance
from kgen.codegen.cache.store import HOST_FOLDER, Cache
from kgen.codegen.emulator import toolchain
from kgen.codegen.errors import DeviceError, EmulationError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    toolchain.host.cache_clear()
    yield tmp_path / "cache"
    toolchain.host.cache_clear()


def compiler(tmp_path: Path, says: str, code: int = 0) -> str:
    """A command that answers ``--version`` so."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "says",
    ["g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "g++-13 (Ubuntu 13.1.0-8ubuntu1~22.04) 13.1.0"],
)
def test_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, says))
    assert toolchain.host().version == says


@pytest.mark.parametrize(
    ("says", "code", "message"),
    [
        ("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", 0, "11.4.0', too old"),
        ("Ubuntu clang version 15.0.7", 0, "is Clang"),
        ("", 0, "is '', too old"),
        ("", 1, "does not run"),
    ],
)
def test_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, code: int, message: str
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, says, code))
    with pytest.raises(DeviceError, match=message) as caught:
        toolchain.host()
    assert "install g++ 12 or newer" in str(caught.value)


def test_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler \(g\+\+: not found\): install"):
        toolchain.host()


def test_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(DeviceError, match="made for x86_64 and aarch64, not for riscv64"):
        toolchain.host()


def build(text: str) -> Path:
    def run(work: Path, output: Path) -> None:
        toolchain.run(work, "-shared", "-fPIC", "-o", str(output), "one.cpp")

    return toolchain.library("test", [("one.cpp", text)], (), run)


@pytest.mark.cpu
def test_a_library_is_built_once_and_cleared(own_cache: Path) -> None:
    first = build("int one = 1;")
    made = first.stat().st_mtime_ns
    assert build("int one = 1;") == first and first.stat().st_mtime_ns == made
    assert build("int one = 2;") != first
    assert first.parent == own_cache / HOST_FOLDER
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert not [path for path in first.parent.iterdir() if path.suffix != ".so"]
    assert maintenance.clear(Cache()) == 0
    assert not first.parent.exists()
    assert build("int one = 1;") == first


@pytest.mark.cpu
def test_the_same_library_side_by_side() -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(build, ["int one = 1;"] * 4))
    assert len(paths) == 1 and paths.pop().exists()


@pytest.mark.cpu
def test_what_does_not_compile() -> None:
    with pytest.raises(EmulationError, match=r"one\.cpp failed:(.|\n)*error"):
        build("int one = ;")


def test_a_folder_that_others_can_write_is_not_used(own_cache: Path) -> None:
    toolchain.folder().chmod(0o777)
    with pytest.raises(DeviceError, match=r"writable by group or others .* are not run"):
        toolchain.folder()
