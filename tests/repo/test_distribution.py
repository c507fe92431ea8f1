"""The wheel: built from a copy of the tree, with everything in it, and able to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ..helpers.places import ROOT

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: str, **env: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    tree = work / "tree"
    skip = shutil.ignore_patterns("__pycache__")
    for folder in ("codegen", "templates"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "py.typed",
        "__init__.py",
        "__init__.pyi",
        "cli.py",
    ):
        shutil.copy(ROOT / name, tree)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(work), str(tree))
    (built,) = work.glob("*.whl")
    return built


def test_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = [
        ROOT / "cli.py",
        ROOT / "py.typed",
        ROOT / "__init__.pyi",
        *(ROOT / "codegen").rglob("*.py"),
    ]
    for pattern in ("**/*.cu.j2", "**/*.cu", "**/*.cuh", "emulator/executor/*"):
        found = list((ROOT / "templates").glob(pattern))
        assert found
        expected += found
    assert {f"kgen/{path.relative_to(ROOT)}" for path in expected} <= names
    assert not any(name.startswith(("kgen/tests", "kgen/generated")) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.nvrtc
def test_installs_and_builds(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(*PIP, "install", "--no-deps", "--target", str(site), str(wheel))
    code = "import kgen, kgen.cli; print(kgen.__file__); kgen.cli.main()"
    args = ("build", "--heads", "1", "--batch", "1", "-o", str(tmp_path / "out"))
    home = run(sys.executable, "-c", code, *args, PYTHONPATH=str(site)).splitlines()[0]
    assert home == str(site / "kgen" / "__init__.py")
    (cubin,) = (tmp_path / "out").glob("query_folded8_*-sm_90a.cubin")
    assert cubin.stat().st_size > 1000


def test_installed_without_a_checkout_asks_for_a_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = (sys.executable, "-m", "kgen.cli", "generate", "--check")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/")
    assert done.returncode == 2, done.stderr
    assert "an installed kgen has no generated/" in done.stderr
