"""Names that do not exist are found without running what uses them: most of all in tests/gpu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ..helpers.places import ROOT

MISSING = ("attr-defined", "name-defined", "call-arg", "import-not-found")  # kinds of mypy's errors
OPTIONS = ("--implicit-reexport", "--explicit-package-bases", "--no-error-summary")


def missing(folder: Path, *paths: str) -> list[str]:
    """What mypy says of names that ``paths`` use; ``folder`` takes its cache."""
    (folder / "kgen").symlink_to(ROOT, target_is_directory=True)
    command = (sys.executable, "-m", "mypy", *OPTIONS, "--cache-dir", str(folder / "mypy"), *paths)
    env = os.environ | {"MYPYPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    kinds = re.compile(rf"\[({'|'.join(MISSING)})\]$")
    return [line for line in done.stdout.splitlines() if kinds.search(line)]


def test_scripts_and_tests_use_names_that_exist(tmp_path: Path) -> None:
    assert missing(tmp_path, "tests", "benchmarks", "examples") == []


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kgen.codegen.verify import outcome\n\nprint(outcome.shards_of, outcome.poisoned)\n"
    )
    (line,) = missing(tmp_path, str(script))
    assert "shards_of" in line
