"""Source to cubin through NVRTC: no GPU, no driver, no toolkit."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CompileError, MissingCompilerError, TargetError
from .cubin import Cubin, Resources, sections
from .gate import GATE
from .paths import always_waits

if TYPE_CHECKING:
    from .render import Source

OLDEST = 13  # release of NVRTC
EXCERPT = 5  # lines shown on each side of an error


def options(arch: str) -> tuple[str, ...]:
    """The compiler options for ``arch``, in the order in which they are passed and hashed.

    NOTE: without ``--no-cache`` NVRTC initialises the driver and writes to its own disk cache.
    """
    return (
        f"--gpu-architecture={arch}",
        "--std=c++20",
        "--fmad=false",
        "--device-as-default-execution-space",
        "--minimal",
        "--no-source-include",
        "--no-cache",
        "--ptxas-options=-v",
    )


def nvrtc_path() -> str:
    """The NVRTC library that :func:`compile` uses; it is loaded by this call."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return str(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, RuntimeError) as error:
        if beside := _on_the_path():
            return beside
        text = f"NVRTC was not found: pip install nvidia-cuda-nvrtc cuda-python\n{error}"
        raise MissingCompilerError(text) from None


def _on_the_path() -> str | None:
    """NVRTC of a wheel that lies on ``sys.path`` but in no site-packages; loaded if found."""
    for folder in sys.path:
        for path in sorted(Path(folder or ".").glob(f"nvidia/*/lib/libnvrtc.so.{OLDEST}")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return str(path.absolute())
    return None


@functools.cache
def nvrtc_build() -> str:
    """What tells this NVRTC from every other: its release and its ELF build ID, ``13.5+feeb…``.

    Neither imports the bindings nor reads more than a few pages of the library; one without a
    build ID is hashed whole.
    """
    path = nvrtc_path()
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if major.value < OLDEST:
        found = f"NVRTC {major.value}.{minor.value} ({path}) is loaded in this process"
        raise MissingCompilerError(f"{found}; kgen needs NVRTC {OLDEST} or newer, in its place")
    return f"{major.value}.{minor.value}+{_build_id(path)[:16]}"


def _build_id(path: str) -> str:
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            for name, offset, size in sections(library):
                if name == ".note.gnu.build-id":
                    return library[offset + 16 : offset + size].hex()
        return hashlib.file_digest(file, "sha256").hexdigest()


def supported_archs() -> tuple[str, ...]:
    """The architectures that NVRTC compiles for, without the variants (``a``, ``f``) of each."""
    _, archs = _bindings().nvrtcGetSupportedArchs()
    return tuple(f"sm_{arch}" for arch in archs)


def unknown_arch(arch: str) -> TargetError:
    """The error for an architecture that NVRTC does not know."""
    known = ", ".join(supported_archs())
    return TargetError("arch", arch, f"NVRTC {nvrtc_build()} knows {known} and their variants")


def compile(source: Source, arch: str) -> Cubin:
    """Compile ``source`` for ``arch``.

    Raises
    ------
    CompileError
        With the log, the options, the template and a numbered excerpt of the source.
    TargetError
        When NVRTC does not know ``arch``.
    """
    started = time.perf_counter()
    with GATE.inside(), _program(source, arch, options(arch)) as (program, report):
        nvrtc = _bindings()
        image = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        written = _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode()
    resources = _resources(source, report, image)
    waits = always_waits(written, source.entry)
    seconds = time.perf_counter() - started
    return Cubin(image, source.entry, arch, _diagnostics(report), resources, seconds, waits)


def ptx(source: Source, arch: str) -> str:
    """The PTX of ``source``, which its cubin for ``arch`` is assembled from.

    Raises
    ------
    CompileError, TargetError
        As :func:`compile` does.
    """
    _, *others = options(arch)
    flags = (f"--gpu-architecture={arch.replace('sm', 'compute')}", *others)
    with GATE.inside(), _program(source, arch, flags) as (program, _):
        nvrtc = _bindings()
        text = _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    return text.decode().rstrip("\0")


@contextmanager
def _program(source: Source, arch: str, flags: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """NVRTC's program of ``source``, compiled with ``flags``, and its log."""
    nvrtc = _bindings()
    names, contents = [[text.encode() for text in part] for part in _columns(source.headers)]
    status, program = nvrtc.nvrtcCreateProgram(
        source.text.encode(), source.name.encode(), len(names), contents, names
    )
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{source.name}: nvrtcCreateProgram failed with {status.name}")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        report = log.decode(errors="replace").replace("\0", "")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            if "invalid value for --gpu-architecture" in report:
                raise unknown_arch(arch)
            written = _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode()
            raise _failure(source, arch, _diagnostics(report) or status.name, written)
        yield program, report
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bindings() -> Any:
    nvrtc_path()
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingCompilerError(
            f"NVRTC cannot be called: pip install cuda-python\n{error}"
        ) from None
    return nvrtc


def _columns(headers: tuple[tuple[str, str], ...]) -> tuple[list[str], list[str]]:
    return [name for name, _ in headers], [text for _, text in headers]


def _fetch(get_size: Callable[..., Any], get: Callable[..., Any], program: Any) -> bytes:
    """What NVRTC holds for ``program``; nothing where it has got none."""
    status, size = get_size(program)
    data = bytes(size if status == 0 else 0)
    if data:
        get(program, data)
    return data


_REPORT = re.compile(
    r"ptxas (info\s+: (\d+ bytes gmem|Compiling|Function prop|Used|Compile time)|\s+\. ).*\n?"
)


def _diagnostics(report: str) -> str:
    """The log without the lines that :func:`_resources` reads."""
    return _REPORT.sub("", report).strip()


def _resources(source: Source, report: str, image: bytes) -> Resources:
    entries = re.findall(r"Compiling entry function '(\w+)'", report)
    if entries != [source.entry]:
        raise CompileError(
            f"{source.name} (template {source.template}): its one entry should be "
            f"{source.entry}; NVRTC found {', '.join(entries) or 'none'}"
        )

    def numbers(what: str) -> list[int]:
        return [int(number) for number in re.findall(rf"(\d+) {what}", report)]

    return Resources(
        registers=max(numbers("registers")),
        smem_static=sum(numbers("bytes smem")),
        local_bytes=max(numbers("bytes stack frame") + numbers("bytes cumulative stack size")),
        spill_stores=sum(numbers("bytes spill stores")),
        spill_loads=sum(numbers("bytes spill loads")),
        code_bytes=sum(s for name, _, s in sections(image) if name == f".text.{source.entry}"),
    )


def _failure(source: Source, arch: str, log: str, ptx: str) -> CompileError:
    parts = [
        f"{source.name} (template {source.template}) did not compile for {arch}",
        log,
        f"options: {' '.join(options(arch))}",
        *_excerpts(source, log, ptx),
    ]
    return CompileError("\n\n".join(parts))


def _excerpts(source: Source, log: str, ptx: str) -> Iterator[str]:
    """The lines around the first error, in the file it is in; for an error of the assembler,
    which knows no source line, the entry and the PTX."""
    files = {source.name: source.text, **dict(source.headers)}
    for name, line in re.findall(r"^(.+)\((\d+)\): (?:catastrophic )?error", log, re.MULTILINE):
        if name in files:
            yield _numbered(name, files[name], int(line))
            return
    before = source.text.partition(f" {source.entry}(")[0]
    yield _numbered(source.name, source.text, before.count("\n") + 1)
    if found := re.search(r"ptx input, line (\d+)", log):
        yield _numbered("PTX", ptx, int(found[1]))


def _numbered(name: str, text: str, line: int) -> str:
    lines = text.splitlines()
    first, last = max(line - EXCERPT, 1), min(line + EXCERPT, len(lines))
    body = (
        f"{'>' if number == line else ' '} {number:4d} | {lines[number - 1]}"
        for number in range(first, last + 1)
    )
    return "\n".join((f"{name}:{line}", *body))
