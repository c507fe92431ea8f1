"""The scripts of benchmarks/ and examples/, as far as they go without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kgen.codegen import schema
from kgen.codegen.bench import timing
from kgen.codegen.bench.timing import Timing
from kgen.codegen.plan import plan

from ..helpers.places import ROOT

SCRIPTS = sorted((*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")))


def load(name: str) -> ModuleType:
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(f"kgen_script_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def run(path: Path, *args: str, torch: bool = True) -> subprocess.CompletedProcess[str]:
    """A script of its own process; with ``torch`` off, one that cannot import it."""
    hide = "" if torch else "import sys; sys.modules['torch'] = None; "
    code = f"{hide}import runpy, sys; sys.argv = {[str(path), *args]!r}; "
    code += f"runpy.run_path({str(path)!r}, run_name='__main__')"
    command = (sys.executable, "-c", code)
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    "path", [p for p in SCRIPTS if "argparse" in p.read_text()], ids=lambda path: path.name
)
def test_help(path: Path) -> None:
    found = run(path, "--help", torch=False)
    assert (found.returncode, found.stderr) == (0, "") and "usage" in found.stdout


def test_the_example_says_what_it_lacks() -> None:
    path = ROOT / "examples" / "decode_layer.py"
    found = run(path, torch=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "this example needs PyTorch: pip install 'kgen-mla[torch]'\n"
    found = run(path, "--batch", "1", torch=False)
    assert found.returncode == 2 and "2 or more" in found.stderr


def test_the_examples_are_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in ROOT.glob("examples/*.py")]
    assert names and all(f"examples/{name}" in text for name in names)


def test_the_sanitizer_covers_every_family() -> None:
    cases = load("benchmarks/launch_once.py").cases()
    configs = [config for listed in cases.values() for config, _ in listed]
    assert {config.kernel for config in configs} == {*schema.KERNELS}
    fronts = {
        (s.scheme, c.mx, c.fp4) for listed in cases.values() for c, s in listed if "mx" in vars(c)
    }
    assert len(fronts) == 6
    for listed in cases.values():
        for config, schedule in listed:
            made = plan(config, "sm_90a", schedule)
            assert made.tokens < config.batch or config.kernel == "query_norm"
            timing.host_arguments(made.params)


def test_the_suite_runs_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load("benchmarks/gpu_suite.py")
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    outcomes = list(suite.examples(None))
    assert [str(outcome).split()[:3] for outcome in outcomes] == [["ok", "example", "decode_layer"]]
    assert "no PyTorch" in outcomes[0].text and not outcomes[0].failed


def test_other_families_are_held_to_the_original() -> None:
    script = load("benchmarks/performance.py")
    assert {schema.parse_slug(slug).kernel for slug in script.OTHERS} == {"value", "index_front"}
    timing = Timing("index_front-b8", "sm_90a", "rows-8-1", 2.94, 4.73, 24)
    assert script.other_row(11.85, 4.71, timing, 1.5) == (
        *("index_front-b8", "rows-8-1", "2.94", "4.73", "4.71", "11.85", "yes", "4.41"),
    )
    assert script.other_row(4.0, 4.8, timing, 1.5)[6] == "no, +20.0%"
