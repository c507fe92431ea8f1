from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.nvrtc import Cubin
from kgen.codegen.compiler.render import Source
from kgen.codegen.errors import CompileError, ConfigError
from kgen.codegen.targets import TARGETS

pytestmark = pytest.mark.nvrtc

TOOLS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"

LOCAL = """
extern "C" __global__ void local(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = p[i] * i;
  for (int i = 0; i < n; i++) a[(i * 7 + n) % 64] += p[i];
  p[threadIdx.x] = a[n];
}
"""
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* p, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = p[i * n];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) p[i * n + 1] = a[i] + a[63 - i];
}
"""
SHARED = """
extern "C" __global__ void shared(float* p, int n) {
  __shared__ float s[100];
  extern __shared__ float d[];
  s[threadIdx.x] = p[n];
  d[threadIdx.x] = 1;
  __syncthreads();
  p[0] = s[n] + d[n];
}
"""
CALLS = """
__noinline__ float pick(float* p, int n) {
  float a[32];
  for (int i = 0; i < 32; i++) a[i] = p[i];
  for (int i = 0; i < n; i++) a[(i * 7 + n) % 32] += p[i];
  return a[n];
}
__noinline__ float last(float* p, int n) { return p[n]; }
__constant__ float (*const table[2])(float*, int) = {pick, last};
extern "C" __global__ void calls(float* p, int n) {
  float a[16];
  for (int i = 0; i < 16; i++) a[i] = p[i];
  for (int i = 0; i < n; i++) a[(i * 7 + n) % 16] += p[i];
  p[0] = table[n & 1](p, n) + a[n];
}
"""
PLAIN = """
extern "C" __global__ void __cluster_dims__(8) __launch_bounds__(288, 2) plain(float* p, int n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  p[threadIdx.x] = n;
}
"""
RECURSES = """
__noinline__ int fibonacci(int n) { return n < 2 ? 1 : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void recurses(int* p, int n) { p[0] = fibonacci(n); }
"""
KERNELS = {
    "plain": PLAIN, "local": LOCAL, "spills": SPILLS, "shared": SHARED, "calls": CALLS,
    "recurses": RECURSES,
}  # fmt: skip


def source(text: str, entry: str = "k", headers: tuple[tuple[str, str], ...] = ()) -> Source:
    return Source(f"{entry}.cu", f"{entry}.cu.j2", entry, text, headers)


def tool(name: str, *arguments: object) -> str:
    if not (TOOLS / name).exists():
        pytest.skip(f"{name} is not installed (kgen[inspect])")
    path = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    command = [str(TOOLS / name), *map(str, arguments)]
    return subprocess.run(command, env=path, check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=[(k, a) for k in KERNELS for a in ("sm_90a", "sm_100a")], ids="-".join)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cubin, Path]]:
    entry, arch = request.param
    cubin = nvrtc.compile(source(KERNELS[entry], entry), arch)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin.image)
    yield cubin, path


def test_resources_agree_with_cuobjdump(built: tuple[Cubin, Path]) -> None:
    cubin, path = built
    usage = tool("cuobjdump", "-res-usage", path)
    assert re.search(rf"Function {cubin.entry}:", usage)
    found = dict(re.findall(r"(\w+):(\w+)", usage.partition("Function")[2]))
    assert cubin.resources.registers == int(found["REG"])
    if found["STACK"] == "UNKNOWN":
        assert cubin.entry == "recurses" and cubin.resources.local_bytes > 0
    else:
        assert cubin.resources.local_bytes == int(found["STACK"]) + int(found["LOCAL"])
    reserved = 1024 if "extern __shared__" in KERNELS[cubin.entry] else 0
    assert cubin.resources.smem_static + reserved == int(found["SHARED"])


def test_spills_and_code_agree_with_the_instructions(built: tuple[Cubin, Path]) -> None:
    cubin, path = built
    sass = tool("nvdisasm", "-c", path)
    stores, loads = _bytes(sass, "STL"), _bytes(sass, "LDL")
    found = cubin.resources
    if cubin.entry == "local":  # its array is all that lies in local memory
        assert stores > 0 and found.spill_stores == found.spill_loads == 0
    elif cubin.entry == "calls":  # arrays, and what its functions spill
        assert 0 < found.spill_stores < stores and 0 < found.spill_loads < loads
    else:
        assert (found.spill_stores, found.spill_loads) == (stores, loads)
    last = max(int(address, 16) for address in re.findall(r"/\*([0-9a-f]{4,})\*/", sass))
    assert found.code_bytes == last + 16


def _bytes(sass: str, opcode: str) -> int:
    names = re.findall(rf"\b{opcode}\b([.0-9A-Z]*) ", sass)
    return sum(16 if ".128" in name else 8 if ".64" in name else 4 for name in names)


def test_the_kernels_cover_what_is_reported() -> None:
    spills, local, plain = (
        nvrtc.compile(source(KERNELS[entry], entry), "sm_90a").resources
        for entry in ("spills", "local", "plain")
    )
    assert spills.registers == 32 and spills.spill_stores > 500 and spills.spill_loads > 500
    assert local.local_bytes == 256
    assert (plain.local_bytes, plain.spill_stores, plain.smem_static) == (0, 0, 0)


@pytest.mark.parametrize("arch", TARGETS)
def test_every_target_of_kgen_compiles(arch: str) -> None:
    cubin = nvrtc.compile(source(PLAIN, "plain"), arch)
    assert cubin.image[:4] == b"\x7fELF"
    assert (cubin.entry, cubin.arch, cubin.log) == ("plain", arch, "")
    assert nvrtc.options(arch)[0] == f"--gpu-architecture={arch}"


def test_the_same_source_gives_the_same_bytes() -> None:
    first, second = (nvrtc.compile(source(SPILLS, "spills"), "sm_90a") for _ in range(2))
    assert first.image == second.image


def test_multiply_and_add_are_not_contracted(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void k(float* p) { p[0] = p[1] * p[2] + p[3]; }'
    (tmp_path / "k.cubin").write_bytes(nvrtc.compile(source(text), "sm_90a").image)
    sass = tool("nvdisasm", "-c", tmp_path / "k.cubin")
    assert "FMUL" in sass and "FADD" in sass and "FFMA" not in sass


def test_headers_are_given_by_name() -> None:
    text = '#include "two.cuh"\nextern "C" __global__ void k(int* p) { *p = two(); }'
    headers = (
        ("one.cuh", "#pragma once\nint one() { return 1; }\n"),
        ("two.cuh", '#include "one.cuh"\nint two() { return one() + 1; }\n'),
    )
    assert nvrtc.compile(source(text, headers=headers), "sm_90a").resources.registers > 0


def test_files_nearby_are_not_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "near.cuh").write_text("#define NEAR 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"open source file .near\.cuh"):
        nvrtc.compile(source('#include "near.cuh"\n' + PLAIN, "plain"), "sm_90a")


def _failure(text: str, entry: str = "k", headers: tuple[tuple[str, str], ...] = ()) -> str:
    messages = []
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            nvrtc.compile(source(text, entry, headers), "sm_90a")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


def test_a_failure_shows_log_options_template_and_the_numbered_lines() -> None:
    lines = ["// filler"] * 20 + ['extern "C" __global__ void k(int* p) {', "  *p = missing;", "}"]
    message = _failure("\n".join(lines))
    assert message.startswith("k.cu (template k.cu.j2) did not compile for sm_90a\n")
    assert 'k.cu(22): error: identifier "missing" is undefined' in message
    assert f"options: {' '.join(nvrtc.options('sm_90a'))}" in message
    assert "\nk.cu:22\n" in message
    assert "\n>   22 |   *p = missing;\n    23 | }" in message
    assert "   17 | // filler" in message and "   16 |" not in message


def test_a_failure_in_a_header_shows_the_header() -> None:
    headers = (("bad.cuh", "// one\nint bad() { return missing; }\n"),)
    message = _failure('#include "bad.cuh"\n' + PLAIN, "plain", headers)
    assert "\nbad.cuh:2\n     1 | // one\n>    2 | int bad() { return missing; }" in message


def test_a_failed_assertion_shows_its_text() -> None:
    message = _failure('static_assert(sizeof(int) == 5, "an int has 5 bytes");\n' + PLAIN, "plain")
    assert 'static assertion failed with "an int has 5 bytes"' in message
    assert '>    1 | static_assert(sizeof(int) == 5, "an int has 5 bytes");' in message


def test_a_failure_of_the_assembler_shows_the_entry_and_the_ptx() -> None:
    message = _failure('\n\nextern "C" __global__ void k(int* p) { asm volatile("foo.bar;"); }')
    assert "error   : Not a name of any known instruction: 'foo'" in message
    assert '\n>    3 | extern "C" __global__ void k(int* p)' in message
    assert re.search(r"\nPTX:\d+\n(.*\n)*> +\d+ \| \tfoo\.bar;", message)


def test_too_much_shared_memory_says_both_numbers_the_same_each_time() -> None:
    text = """extern "C" __global__ void k(float* p, int n) {
      __shared__ float s[100000];
      s[n] = 1; __syncthreads(); p[0] = s[n + 1]; }"""
    message = _failure(text)
    assert "uses too much shared data (0x61a80 bytes, 0x38c00 max)" in message
    assert "Compile time" not in message and "Used" not in message


@pytest.mark.parametrize("text", ["", PLAIN.replace("plain", "other"), PLAIN + LOCAL])
def test_the_entry_must_be_the_one_and_only(text: str) -> None:
    with pytest.raises(CompileError, match="its one entry should be plain; NVRTC found"):
        nvrtc.compile(source(text, "plain"), "sm_90a")


def test_warnings_are_kept() -> None:
    text = 'extern "C" __global__ void k(int* p) { int unused = 3; *p = 1; }'
    log = nvrtc.compile(source(text), "sm_90a").log
    assert '"unused" was declared but never referenced' in log and "ptxas info" not in log


@pytest.mark.parametrize("arch", ["sm_77", "sm_9999a", "sm_90x", "gfx942", ""])
def test_an_unknown_arch_lists_the_known_ones(arch: str) -> None:
    with pytest.raises(ConfigError) as caught:
        nvrtc.compile(source(PLAIN, "plain"), arch)
    message = str(caught.value)
    assert message.startswith(f"arch: got {arch!r}; NVRTC {nvrtc.nvrtc_build()} knows sm_")
    assert "sm_90," in message and "sm_100," in message


def test_the_targets_of_kgen_are_known_to_nvrtc() -> None:
    assert {name.rstrip("a") for name in TARGETS} <= set(nvrtc.supported_archs())


def test_the_build_names_release_and_library() -> None:
    from cuda.bindings import nvrtc as bindings

    _, major, minor = bindings.nvrtcVersion()
    release, _, build = nvrtc.nvrtc_build().partition("+")
    assert release == f"{major}.{minor}"
    assert re.fullmatch("[0-9a-f]{16}", build)
    assert bytes.fromhex(build) in Path(nvrtc.nvrtc_path()).read_bytes()


def test_a_library_without_a_build_id_is_hashed(tmp_path: Path) -> None:
    image = nvrtc.compile(source(PLAIN, "plain"), "sm_90a").image
    (tmp_path / "library").write_bytes(image)
    first = nvrtc._build_id(str(tmp_path / "library"))
    (tmp_path / "library").write_bytes(image + b"\0")
    assert nvrtc._build_id(str(tmp_path / "library")) != first


def test_a_missing_nvrtc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    def fail(name: str) -> None:
        raise RuntimeError(f"no {name}")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", fail)
    monkeypatch.setattr(nvrtc, "_on_the_path", lambda: None)
    with pytest.raises(CompileError, match="install nvidia-cuda-nvrtc"):
        nvrtc.compile(source(PLAIN, "plain"), "sm_90a")


def test_python_runs_on_while_nvrtc_compiles() -> None:
    thread = threading.Thread(target=nvrtc.compile, args=(source(SPILLS, "spills"), "sm_90a"))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10


def test_compiling_opens_no_driver_library() -> None:
    code = (
        "from kgen.codegen.compiler import nvrtc, render\n"
        f"text = {PLAIN!r}\n"
        "source = render.Source('plain.cu', 'plain.cu.j2', 'plain', text, ())\n"
        "print(len(nvrtc.compile(source, 'sm_90a').image), nvrtc.supported_archs())\n"
    )
    opened = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_DEBUG": "libs,files"},
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    assert "libnvrtc.so" in opened
    assert "libcuda.so" not in opened and "libcudart.so" not in opened


@pytest.mark.bench
def test_a_small_kernel_compiles_within_half_a_second() -> None:
    code = (
        "import time; start = time.perf_counter()\n"
        "from kgen.codegen.compiler import nvrtc, render\n"
        f"source = render.Source('k.cu', 'k.cu.j2', 'spills', {SPILLS!r}, ())\n"
        "print(nvrtc.compile(source, 'sm_90a').seconds)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 0.5
