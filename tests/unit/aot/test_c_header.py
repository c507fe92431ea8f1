"""The C header: compiled, linked with a stand-in for the driver, and launched from there."""

from __future__ import annotations

import functools
import importlib.metadata
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kgen.codegen.aot.c_header import files
from kgen.codegen.aot.wheel import Label
from kgen.codegen.build import Artifact, build
from kgen.codegen.compiler.render import render
from kgen.codegen.plan import plan
from kgen.codegen.schema import parse_slug

from ...helpers import configs, cubins, packaged
from ...helpers.places import DATA, ROOT

pytestmark = pytest.mark.nvrtc

EXAMPLE = ROOT / "examples" / "launch.cpp"
WARN = ("-Wall", "-Wextra", "-Werror", "-O1")
LABEL = Label("kgen-cubins", "1")


@functools.cache
def include() -> Path:
    """The folder with cuda.h."""
    try:
        found = importlib.metadata.files("nvidia-cuda-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cuda-runtime, which holds cuda.h, is not installed")
    (header,) = (path for path in found if path.name == "cuda.h")
    return Path(str(header.locate())).parent


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)


def compile(program: str, *args: str | Path, cwd: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = run(program, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built as its first lines say, but for the driver."""
    folder = tmp_path_factory.mktemp("header") / "out"
    args = ("-o", folder, "--format", "header", "--cache-dir", folder.with_name("cache"))
    archs = ("--arch", "sm_90a", "--arch", "sm_100a")
    assert packaged.kgen("package", "query-h8-b8", *archs, *args).exit_code == 0
    compile("gcc", *WARN, "-std=c11", "-c", "kgen_cubins.c", cwd=folder)
    compile("gcc", "-O1", "-I", include(), "-c", DATA / "driver.c", cwd=folder)
    objects = ("kgen_cubins.o", "driver.o", "-o", "launch")
    flags = (*WARN, "-std=c++17", "-I.", "-I", include())
    compile("g++", *flags, EXAMPLE, *objects, cwd=folder)
    return folder


@pytest.mark.parametrize(("arch", "capability"), [("sm_90a", "90"), ("sm_100a", "100")])
def test_the_example_launches_what_the_plan_says(
    folder: Path, arch: str, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CAPABILITY", capability)
    done = run("./launch", cwd=folder)
    assert done.returncode == 0, done.stderr
    planned = plan(parse_slug("query-h8-b8"), arch)
    entry, *numbers, params = done.stderr.split()
    assert entry == planned.entry
    assert [*map(int, numbers)] == [*planned.grid, planned.threads, planned.smem_bytes, 6]
    fields = [field.name for field in planned.params.fields]
    sent = struct.unpack(planned.params.format, bytes.fromhex(params))
    values = dict(zip(fields, sent, strict=True))
    assert values["qkv_stride"] == 2112 and values["page_size"] == 16 and values["num_rows"] == 8
    assert values["page_stride"] == 16 * 576 and values["out_stride"] == 8 * 576
    assert values["eps"] == pytest.approx(1e-6) and values["out"] != values["cache"] != 0
    assert done.stdout.startswith(f"query-h8-b8 {arch} grid ")


def test_a_gpu_without_a_kernel_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CAPABILITY", "120")
    done = run("./launch", cwd=folder)
    assert done.returncode == 1
    assert "no query-h8-b8 for compute capability 12.0" in done.stderr


@pytest.fixture(scope="module")
def artifacts() -> list[Artifact]:
    """One of each form, without code of its own."""
    return [
        Artifact(planned, cubins.compiled(render(planned), "sm_90a"), "0" * 64, None, "compiled")
        for planned in configs.forms()
    ]


@pytest.mark.parametrize("language", [("gcc", "-std=c11"), ("g++", "-std=c++11", "-xc++")])
def test_every_form_has_a_struct_that_compiles(
    artifacts: list[Artifact], tmp_path: Path, language: tuple[str, ...]
) -> None:
    written = files(artifacts, LABEL)
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    compile(*language, *WARN, "-c", "kgen_cubins.c", cwd=tmp_path)
    assert files(artifacts[::-1], LABEL) == written
    for artifact in artifacts:
        assert f"{artifact.plan.entry}_params;" in written["kgen_cubins.h"]


def test_two_packages_go_together(artifacts: list[Artifact], tmp_path: Path) -> None:
    for name in ("one", "two"):
        for file, text in files(artifacts[:2], Label(name, "1")).items():
            (tmp_path / file).write_text(text)
    main = '#include "one.h"\n#include "two.h"\nint main() { return one_count + two_count != 4; }\n'
    (tmp_path / "main.cpp").write_text(main)
    compile("g++", *WARN, "main.cpp", "one.c", "two.c", "-o", "main", cwd=tmp_path)
    assert run("./main", cwd=tmp_path).returncode == 0


def test_the_cubin_is_in_the_c_file_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    program = """#include <stdio.h>
#include "kgen_cubins.h"
int main(void) {
    const kgen_kernel* k = kgen_cubins_find("query-h8-b8", 9, 0);
    return fwrite(k->cubin, 1, k->cubin_size, stdout) != k->cubin_size;
}
"""
    (folder / "dump.c").write_text(program)
    compile("gcc", "dump.c", "kgen_cubins.o", "-o", "dump", cwd=folder)
    done = subprocess.run([folder / "dump"], capture_output=True, check=True)
    assert done.stdout == build(parse_slug("query-h8-b8"), "sm_90a").cubin.image
