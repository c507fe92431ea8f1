"""A wheel of a few small kernels, built and installed once for the tests of packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kgen import cli

SLUGS = ("query_norm-b8", "query_norm-b4", "gate-h1-b8")  # the first two share a cubin
ARCHS = ("sm_90a", "sm_100a")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def kgen(*args: str | Path) -> Result:
    return CliRunner().invoke(cli.kgen, [str(arg) for arg in args])


def package(folder: Path, *args: str, slugs: tuple[str, ...] = SLUGS) -> Path:
    """The one file of ``kgen package`` into ``folder``."""
    archs = [word for arch in ARCHS for word in ("--arch", arch)]
    cache = folder.with_name(f"{folder.name}-cache")  # cold: every build compiles
    result = kgen("package", *slugs, *archs, "-o", folder, "--cache-dir", cache, *args)
    assert result.exit_code == 0, result.output
    (built,) = folder.iterdir()
    return built


def install(wheel: Path, site: Path) -> Path:
    """``site`` with ``wheel`` in it, by pip."""
    command = (*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    subprocess.run(command, check=True, capture_output=True)
    return site


def edit(site: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest in ``site``."""
    path = site / "kgen_cubins" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def python(code: str, *paths: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh process with ``paths`` to import from, and no setting but ``env``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KGEN_")}
    found = filter(None, (*map(str, paths), os.environ.get("PYTHONPATH")))
    more = {"PYTHONPATH": os.pathsep.join(found), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-c", code)
    return subprocess.run(command, capture_output=True, text=True, env=kept | more | env)
