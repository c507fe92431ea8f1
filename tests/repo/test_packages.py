"""What an installed kgen has: every package of the tree, and a command of its own name."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from ..helpers.places import ROOT


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["packages"]
    found = {path.parent for path in ROOT.glob("codegen/**/__init__.py")}
    names = {".".join(("kgen", *path.relative_to(ROOT).parts)) for path in found}
    assert set(listed) == names | {"kgen", "kgen.templates"}


def test_the_package_is_the_command() -> None:
    for arguments, code in ((("--version",), 0), (("no-such-command",), 2)):
        run = (sys.executable, "-m", "kgen", *arguments)
        done = subprocess.run(run, capture_output=True, text=True, cwd="/")
        assert done.returncode == code, done.stderr
        assert "kgen" in done.stdout + done.stderr
