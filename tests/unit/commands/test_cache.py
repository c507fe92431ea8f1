"""``kgen cache``: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kgen import cli
from kgen.codegen.cache.store import Cache

from ...helpers.entries import flip, put

NORM = ("--kernel", "query_norm", "--batch", "8", "--arch", "sm_90a")


def kgen(*args: str) -> Result:
    return CliRunner().invoke(cli.kgen, ("cache", *args))


def data(*args: str) -> Any:
    return json.loads(kgen(*args, "--json").stdout)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    made = Cache()
    for number in range(3):
        put(made, number)
    return made


def test_dir_names_the_roots(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_CACHE_PATH", "/far:/farther")
    assert kgen("dir").stdout == f"{cache.root}\n"
    assert data("dir") == {"folder": str(cache.root), "read_only": ["/far", "/farther"]}


def test_ls_lists_all_roots(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Cache(tmp_path / "far"), 7)
    monkeypatch.setenv("KGEN_CACHE_PATH", str(tmp_path / "far"))
    assert len(data("ls")) == 4
    assert sum(str(tmp_path / "far") in line for line in kgen("ls").stdout.splitlines()) == 1
    flip(next(cache.root.glob("*/*.cubin")))
    result = kgen("ls")
    assert len(result.stdout.splitlines()) == 3
    assert "1 are not loaded: see kgen cache verify" in result.stderr


def test_verify_fails_where_anything_is_wrong(cache: Cache) -> None:
    assert (kgen("verify").exit_code, kgen("verify").stdout) == (0, "")
    path = next(cache.root.glob("*/*.cubin"))
    flip(path)
    result = kgen("verify")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"damaged    {path.parent}: checksum: expected ")
    assert "2 sound, 1 not" in result.stderr
    found = [each for each in data("verify") if each["state"] == "damaged"]
    assert [each["path"] for each in found] == [str(path.parent)]
    assert kgen("verify", "--json").exit_code == 1


def test_prune_and_clear(cache: Cache) -> None:
    assert data("prune", "--older-than", "1h") == []
    (removed,) = data("prune", "--max-size", "6K")
    assert set(removed) == {"key", "bytes", "unused"}
    assert "0 kernels removed" in kgen("prune").stderr
    assert data("clear") == {"folder": str(cache.root), "removed": 2}
    assert "0 kernels removed" in kgen("clear").stderr


@pytest.mark.parametrize("args", [("--max-size", "big"), ("--older-than", "30")])
def test_a_bad_limit_is_named(args: tuple[str, str]) -> None:
    result = kgen("prune", *args)
    assert result.exit_code == 2 and f"{args[0]}: got '{args[1]}'" in result.stderr


@pytest.mark.nvrtc
def test_explain(cache: Cache) -> None:
    (missed,) = data("explain", *NORM)
    assert missed["result"] == "miss" and missed["nearest"]["name"] == "query_norm_row1"
    assert {"text", "header a.cuh"} <= {each["field"] for each in missed["differences"]}
    assert "query_norm-b8 for sm_90a: miss" in kgen("explain", *NORM).stdout
    assert CliRunner().invoke(cli.kgen, ("build", *NORM)).exit_code == 0
    assert data("explain", *NORM)[0]["result"] == "hit"


def test_a_relative_folder_is_refused() -> None:
    result = kgen("ls", "--cache-dir", "cache")
    assert result.exit_code == 2
    assert "KGEN_CACHE_DIR: got 'cache'; an absolute path is needed" in result.stderr


OFFLINE = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("no network")
socket.socket = socket.create_connection = refuse
from click.testing import CliRunner
from kgen import cli
for command in ("dir", "ls", "verify", "prune", "clear", "explain query_norm-b8 --arch sm_90a"):
    result = CliRunner().invoke(cli.kgen, ["cache", *command.split()])
    assert result.exit_code == 0, (command, result.output, result.exception)
loaded = {"cupy", "torch", "numpy"} & set(sys.modules)
assert not loaded, loaded
assert "libcuda.so" not in open("/proc/self/maps").read()
"""


@pytest.mark.nvrtc
def test_it_works_without_network_and_driver(cache: Cache) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run((sys.executable, "-c", OFFLINE), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
