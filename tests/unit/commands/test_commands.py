"""The command line: options, exit codes, messages, streams and what it must not load."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kgen import cli
from kgen.codegen import settings, targets
from kgen.codegen.compiler import goldens
from kgen.codegen.errors import CacheWarning, DeviceError
from kgen.codegen.runtime import nvml
from kgen.codegen.schema import KERNELS

from ...helpers.places import ROOT

SMALL = ("--kernel", "query", "--heads", "1", "--batch", "1")
TOO_LARGE = (*SMALL, "--scheme", "ksplit", "--arch", "sm_120a")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults are the same on every machine."""

    def absent() -> tuple[nvml.Gpu, ...]:
        raise DeviceError("no GPU: NVML says nothing")

    monkeypatch.setattr(nvml, "gpus", absent)


def kgen(*args: str) -> Result:
    return CliRunner().invoke(cli.kgen, args)


def python(code: str) -> str:
    command = (sys.executable, "-c", code)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--heads", "0", "--batch", "1"), r"heads: got '0'; .* an integer from 1 to 128"),
        (("--heads", "129", "--batch", "1"), r"heads: got '129'; .* an integer from 1 to 128"),
        (("--heads", "1.5", "--batch", "1"), r"heads: got '1.5'; .* an integer from 1 to 128"),
        (("--heads", "x", "--batch", "1"), r"heads: got 'x'; .* an integer from 1 to 128"),
        (("--heads", "8", "--batch", "0"), r"batch: got '0'; .* an integer from 1 to 256"),
        (("--heads", "8", "--batch", "16-1"), r"batch: got '16-1'; a range runs upwards: 1-16"),
        (("--heads", "8"), r"batch: .* query requires it"),
        (("--hedas", "8"), r"No such option '--hedas'.*'--heads'"),
        (("query-h8-b1-bogus",), r"slug: .*'bogus' is none of its parts"),
        (("nonsense",), r"kernel: got 'nonsense'; allowed are query"),
        ((*SMALL, "--fp8"), r"fp8: got True; fp8 needs dsa"),
        ((*SMALL, "--scheme", "row"), r"scheme: got 'row'; .*auto, "),
        ((*SMALL, "--arch", "sm_12"), r"arch: got 'sm_12'; .*sm_90a.*NVRTC 13.* knows sm_75"),
        (TOO_LARGE, r"arch: got 'sm_120a'; .*needs 1\d\d,\d{3} bytes .* has 101,376"),
    ],
)
@pytest.mark.parametrize("command", ["build", "plan"])
def test_bad_input_is_named_and_exits_2(command: str, args: tuple[str, ...], message: str) -> None:
    result = kgen(command, *args)
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert not result.stdout and "Traceback" not in result.output


@pytest.mark.parametrize(("typed", "meant"), [("biuld", "build"), ("docter", "doctor")])
def test_misspelt_command_suggests(typed: str, meant: str) -> None:
    result = kgen(typed)
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.stderr


def test_bad_jobs_exits_2() -> None:
    assert kgen("build", *SMALL, "--jobs", "0").exit_code == 2


def test_version() -> None:
    assert re.fullmatch(r"kgen \d+\.\d+\.\d+\n", kgen("--version").stdout)


def test_plan_text() -> None:
    text = kgen("plan", "--heads", "8", "--batch", "64").stdout
    for part in ("query-h8-b64 for sm_90a", "scheme", "grid", "cluster", "tokens", "CTAs per SM"):
        assert part in text
    assert re.search(r"must move +[\d,]+ bytes, [\d,]+ FLOPs", text)
    assert re.search(r"floor +1\.48 µs", text)
    assert re.search(r"sum +[\d,]+ +of 232,448 bytes", text)


def test_plan_json_sums_up() -> None:
    (data,) = json.loads(kgen("plan", "query-h8-b64", "--json").stdout)
    last = data["smem"][-1]
    assert data["smem_bytes"] == last["offset"] + last["size"]
    assert data["config"]["heads"] == 8 and data["arch"] == "sm_90a"


def test_plan_matrix_and_slug_agree() -> None:
    by_options = kgen(
        "plan", "--kernel", "query", "--heads", "6,8", "--batch", "1-2", "--json"
    ).stdout
    slugs = [f"query-h{heads}-b{batch}" for heads in (6, 8) for batch in (1, 2)]
    assert kgen("plan", *slugs, "--json").stdout == by_options
    assert [plan["slug"] for plan in json.loads(by_options)] == slugs


def planned(*args: str) -> list[str]:
    return [plan["slug"] for plan in json.loads(kgen("plan", *args, "--json").stdout)]


def test_plan_shows_a_step_and_its_sum() -> None:
    shape = ("--heads", "8", "--batch", "64")
    assert planned(*shape) == ["query-h8-b64", "value-h8-b64"]
    assert planned(*shape, "--kernel", "value") == ["value-h8-b64"]
    names = ["query-h8-b64-dsa", "index_front-b64", "value-h8-b64"]
    assert planned(*shape, "--dsa") == names
    text = kgen("plan", *shape, "--dsa").stdout
    floors = [float(floor) for floor in re.findall(r"^  floor +([\d.]+) µs$", text, re.MULTILINE)]
    last = text.splitlines()[-1]
    assert last.startswith(f"{' + '.join(names)} for sm_90a: ")
    assert float(last.split()[-2]) == pytest.approx(sum(floors), abs=0.02) and len(floors) == 3
    assert " + " not in kgen("plan", *shape, "--kernel", "query").stdout


def test_each_step_of_a_matrix_has_its_sum() -> None:
    args = ("--heads", "6,8", "--batch", "1-2", "--arch", "sm_90a", "--arch", "sm_100a")
    sums = [line for line in kgen("plan", *args).stdout.splitlines() if " + " in line]
    assert len(sums) == len(set(sums)) == 8
    assert all(re.match(r"query-(\S+) \+ value-\1 for sm_", line) for line in sums)


@pytest.mark.nvrtc
def test_build_builds_a_step(tmp_path: Path) -> None:
    args = ("build", "--heads", "1", "--batch", "8", "--dsa", "--no-release", "-o", str(tmp_path))
    assert kgen(*args).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index_front_rows8_no_release-sm_90a.cubin",
        "query_rows8_dsa_no_release-sm_90a.cubin",
        "value_tiles16_no_release-sm_90a.cubin",
    ]


def test_what_only_the_front_has_needs_dsa() -> None:
    result = kgen("plan", "--heads", "1", "--batch", "1", "--mx")
    assert result.exit_code == 2
    assert "mx: got True; mx belongs to index_front" in result.stderr
    assert "--kernel index_front" in result.stderr


def test_promoted_arch_is_noted() -> None:
    result = kgen("plan", *SMALL, "--arch", "sm_90", "--json")
    assert "note: sm_90 is promoted to sm_90a" in result.stderr
    assert json.loads(result.stdout)[0]["arch"] == "sm_90a"


def planned_arch(*args: str) -> str:
    return str(json.loads(kgen("plan", *SMALL, "--json", *args).stdout)[0]["arch"])


def test_default_arch_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned_arch() == targets.DEFAULT
    gpu = nvml.Gpu(0, "B200", "10.0", 1, "sm_100a")
    monkeypatch.setattr(nvml, "gpus", lambda: (gpu,))
    assert planned_arch() == "sm_100a"
    monkeypatch.setenv("KGEN_ARCH", "sm_103a")
    assert planned_arch() == "sm_103a"
    assert planned_arch("--arch", "sm_90a") == "sm_90a"


@pytest.mark.nvrtc
def test_build_then_cache(tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    args = ("build", *SMALL, "--cache-dir", str(cache), "-o", str(out))
    first, second = kgen(*args), kgen(*args)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    code = "query_folded8_alone_release_start"
    cubin = out / f"{code}-sm_90a.cubin"
    assert cubin.read_bytes().startswith(b"\x7fELF")
    size = f"{cubin.stat().st_size:,}"
    line = rf"query-h1-b1 sm_90a  {re.escape(str(cubin))}  {size} bytes  \d+\.\d+ s\n"
    assert re.fullmatch(line, first.stdout)
    assert "compiled query-h1-b1 sm_90a" in first.stderr
    assert "1 built, 0 cached, 0 failed" in first.stderr
    assert "0 built, 1 cached, 0 failed" in second.stderr
    listed = json.loads(kgen("cache", "ls", "--json", "--cache-dir", str(cache)).stdout)
    assert [(entry["name"], entry["arch"]) for entry in listed] == [(code, "sm_90a")]
    assert kgen("cache", "clear", "--cache-dir", str(cache)).exit_code == 0
    assert kgen("cache", "ls", "--cache-dir", str(cache)).stdout == ""


@pytest.mark.nvrtc
def test_one_failure_stops_no_other() -> None:
    result = kgen("build", *TOO_LARGE, "--arch", "sm_90a", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert [(kernel["slug"], kernel["arch"]) for kernel in data["kernels"]] == [
        ("query-h1-b1-scheme.ksplit", "sm_90a")
    ]
    assert "101,376" in data["failed"][0]["error"]
    assert data["summary"]["failed"] == 1


@pytest.mark.nvrtc
def test_unwritable_cache_builds_in_memory() -> None:
    with pytest.warns(CacheWarning, match=r"/dev/null/x.*KGEN_CACHE_DIR"):
        result = kgen("build", *SMALL, "--cache-dir", "/dev/null/x", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["kernels"][0]["path"] is None


def test_forbidden_compile(tmp_path: Path) -> None:
    result = kgen("build", *SMALL, "--jit", "0", "--cache-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "is in no package and no cache, and compiling is forbidden" in result.stderr


def test_output_that_is_no_folder() -> None:
    result = kgen("build", *SMALL, "-o", "/dev/null/x")
    assert result.exit_code == 2
    assert "--output: got '/dev/null/x'" in result.stderr


def test_env_tells_where_values_are_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_ARCH", "sm_100a")
    rows = json.loads(kgen("env", "--jit", "0", "--json").stdout)
    assert [row["name"] for row in rows] == [setting.name for setting in settings.SETTINGS]
    found = {row["name"]: (row["value"], row["from"]) for row in rows}
    assert found["KGEN_ARCH"] == ("sm_100a", "environment")
    assert found["KGEN_JIT"] == ("0", "flag")
    assert found["KGEN_LOG"] == ("off", "default")
    assert settings.JIT.value() is True, "the flag lasts as long as its command"


def test_cache_dir(tmp_path: Path) -> None:
    assert kgen("cache", "dir", "--cache-dir", str(tmp_path)).stdout == f"{tmp_path}\n"


def test_bench_without_gpu_says_so() -> None:
    result = kgen("bench", *SMALL)
    assert (result.exit_code, result.stderr) == (1, "Error: no GPU: NVML says nothing\n")


def test_generated_sources_are_current() -> None:
    assert kgen("generate", "--check").exit_code == 0, kgen("generate", "--check").output


def test_canonical_set_covers_both_schemes() -> None:
    assert len(set(goldens.SLUGS)) == len(goldens.SLUGS) <= 30
    schemes = {json.loads(kgen("plan", s, "--json").stdout)[0]["scheme"] for s in goldens.SLUGS}
    assert schemes >= {"rows", "ksplit"}


def test_generate_check_lists_each_difference(tmp_path: Path) -> None:
    assert kgen("generate", "-o", str(tmp_path)).exit_code == 0
    assert kgen("generate", "--check", "-o", str(tmp_path)).exit_code == 0
    first, second = sorted(tmp_path.iterdir())[:2]
    first.write_text(first.read_text() + "// by hand\n")
    second.unlink()
    (tmp_path / "old.cu").write_text("")
    result = kgen("generate", "--check", "-o", str(tmp_path))
    assert result.exit_code == 1
    assert f"differs {first}" in result.stdout and "-// by hand" in result.stdout
    assert f"missing {second}" in result.stdout
    assert f"stale {tmp_path / 'old.cu'}" in result.stdout
    written = kgen("generate", "-o", str(tmp_path)).stdout.splitlines()
    assert sorted(written) == sorted(map(str, (first, second, tmp_path / "old.cu")))
    assert kgen("generate", "--check", "-o", str(tmp_path)).exit_code == 0


def test_a_long_diff_is_cut() -> None:
    diff = goldens._diff("x.cu", "a\n" * 99, "b\n" * 99)
    assert len(diff.splitlines()) == goldens.DIFF_LINES + 1
    assert diff.endswith("lines more")


def section(command: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(f"<!-- {command} -->\n")[1].split("<!-- end -->")[0]


@pytest.mark.parametrize("command", ["kgen schema --table", "kgen env --table"])
def test_readme_tables_are_current(command: str) -> None:
    assert section(command) == kgen(*command.split()[1:]).stdout


def test_tables_of_families_are_set_apart() -> None:
    text = kgen("schema", "--table").stdout
    assert text.count("\n\n**") == len(KERNELS) - 1 and "|\n**" not in text


def test_readme_and_ci_agree() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, tests = re.findall(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == tests


def test_help_imports_little() -> None:
    heavy = ("pydantic", "rich", "jinja2", "numpy", "cupy", "cuda", "pynvml", "platformdirs")
    code = f"""
import sys
from click.testing import CliRunner
from kgen.cli import kgen
assert CliRunner().invoke(kgen, ["--help"]).exit_code == 0
print(*(name for name in {heavy} if name in sys.modules))
"""
    assert python(code).split() == []


@pytest.mark.nvrtc
@pytest.mark.parametrize("command", [("plan", *SMALL), ("build", *SMALL), ("generate", "--check")])
def test_no_command_below_a_launch_touches_the_driver(command: tuple[str, ...]) -> None:
    code = f"""
import sys
from click.testing import CliRunner
from kgen import cli
CliRunner().invoke(cli.kgen, {command})
print("cupy" in sys.modules, "libcuda.so" in open("/proc/self/maps").read())
"""
    assert python(code) == "False False\n"


@pytest.mark.bench
def test_help_is_fast() -> None:
    command = (sys.executable, "-m", "kgen.cli", "--help")

    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) <= 0.25
