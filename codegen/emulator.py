"""The generated kernels on a CPU: the rendered source compiled for the host and run, checked.

No CUDA library and no GPU is needed, only a C++20 compiler. See docs/emulation.md for what is
modelled.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import settings
from .errors import DeviceError, EmulationError
from .params import Array
from .plan import Plan
from .render import TEMPLATES, Source, render

HOST = TEMPLATES / "host"
FLAGS = ("-std=c++20", "-g", "-fPIC", "-ffp-contract=off", "-w")
INSTRUMENT = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")
TWINS = ("types.cuh", "sync.cuh", "copy.cuh", "mma.cuh", "numeric.cuh")  # replaced by HOST's
REPORT_BYTES = 8192


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("pad", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("smem", ctypes.c_uint32),
        ("late", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("num_buffers", ctypes.c_int32),
        ("lazy", ctypes.c_int32),
        ("report", ctypes.c_char_p),
        ("report_bytes", ctypes.c_uint64),
        ("places", ctypes.c_void_p * 2),
    )


@dataclass(frozen=True)
class Host:
    """The host's compiler: its command and the version that it gives."""

    command: str
    version: str


@cache
def host() -> Host:
    """The C++ compiler here.

    Raises
    ------
    DeviceError
        When there is none.
    """
    command = os.environ.get("CXX") or shutil.which("g++") or ""
    if not command:
        raise DeviceError("no C++ compiler here: the CPU run needs g++ 12 or newer (or set CXX)")
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return Host(command, version.stdout.splitlines()[0])


def emulate(plan: Plan, *, source: Source | None = None) -> Emulated:
    """The kernel of ``plan`` for the CPU; ``source`` stands in for the rendered one."""
    return Emulated(plan, source or render(plan))


class Emulated:
    """A kernel compiled for the CPU, called with NumPy arrays of its parameters' names."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan = plan
        self.library = _kernel_library(source)
        _machine()  # its symbols are the kernel's
        self._entry = ctypes.CDLL(str(self.library)).machine_entry

    def __call__(
        self, arrays: Mapping[str, Any], *, seed: int = 0, lazy: bool = True, **scalars: Any
    ) -> None:
        """Run the kernel; outputs are written in place.

        Parameters
        ----------
        arrays
            By parameter name; BF16 as uint16, FP8 as uint8. Their strides are passed on.
        seed
            Of the scheduling.
        lazy
            Asynchronous work completes only when nothing else can run; else at any moment.
        **scalars
            By-value parameters that differ from their defaults.

        Raises
        ------
        EmulationError
            When the kernel does what the hardware does not promise: the report names the CTA, the
            thread, the lines of the kernel's source and the seed.
        """
        plan = self.plan
        packed = plan.params.pack(_fields(plan, arrays, scalars))
        buffers = _buffers(plan, arrays)
        report = ctypes.create_string_buffer(REPORT_BYTES)
        launch = _Launch(
            entry=ctypes.cast(self._entry, ctypes.c_void_p),
            params=ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p),
            params_bytes=len(packed),
            grid=(ctypes.c_uint32 * 3)(*plan.grid),
            cluster=plan.cluster,
            threads=plan.threads,
            smem=plan.smem_bytes,
            late=bool(getattr(plan.config, "late", False)),
            seed=seed,
            buffers=buffers,
            num_buffers=len(buffers),
            lazy=lazy,
            report=ctypes.cast(report, ctypes.c_char_p),
            report_bytes=REPORT_BYTES,
        )
        if _machine().machine_run(ctypes.byref(launch)):
            raise EmulationError(self._explain(report.value.decode(), launch.places, seed))

    def _explain(self, report: str, places: Any, seed: int) -> str:
        lines = [f"{self.plan.config.slug}: {report}"]
        for word, place in zip(("at", "partner"), places, strict=True):
            if place:
                lines.append(f"  {word}: {_line_of(self.library, place)}")
        return "\n".join([*lines, f"  seed {seed}"])


def _fields(
    plan: Plan, arrays: Mapping[str, Any], scalars: Mapping[str, Any]
) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    for array in plan.params.arrays:
        given = arrays[array.name]
        values[array.name] = given.ctypes.data
        for axis, extent, stride in zip(array.axes, given.shape, given.strides, strict=False):
            if axis.stride:
                values[axis.stride] = stride // array.itemsize
            if axis.size:
                values[axis.size] = extent
    for scalar in plan.params.scalars:
        default = 0 if scalar.default is None else scalar.default
        values[scalar.name] = scalars.get(scalar.name, default)
    return values


def _kind(array: Array) -> int:
    """0: constant in a chain of launches; 1: of this step, read; 2: written."""
    if array.role != "in":
        return 2
    return int(any(axis.rows for axis in array.axes))


def _buffers(plan: Plan, arrays: Mapping[str, Any]) -> Any:
    made = []
    for array in plan.params.arrays:
        given: np.ndarray[Any, Any] = arrays[array.name]
        low, high = np.lib.array_utils.byte_bounds(given)
        made.append(_Buffer(array.name.encode(), low, high - low, _kind(array), 0))
    return (_Buffer * len(made))(*made)


@cache
def _machine() -> Any:
    """The executor, loaded so that kernels find its symbols."""
    texts = [(p.name, p.read_text(encoding="utf-8")) for p in sorted(HOST.iterdir())]
    path = _compiled("machine", texts, _compile_machine)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.machine_run.argtypes = [ctypes.c_void_p]
    return library


def _compile_machine(folder: Path, output: Path) -> None:
    _run(folder, "-O2", *FLAGS, "-shared", "-o", str(output), str(HOST / "machine.cpp"))


def _kernel_library(source: Source) -> Path:
    twins = [(p.name, p.read_text(encoding="utf-8")) for p in sorted(HOST.glob("*.h"))]
    twins += [(name, (HOST / name).read_text(encoding="utf-8")) for name in TWINS]
    plain = [header for header in source.headers if header[0] not in TWINS]
    texts = [(source.name, source.text), *plain, *twins]

    def build(folder: Path, output: Path) -> None:
        for name, text in texts:
            (folder / name).write_text(text, encoding="utf-8")
        call = f"{source.entry}(*static_cast<const Params*>(params));"
        entry = f'extern "C" void machine_entry(const void* params) {{ {call} }}'
        (folder / "entry.cpp").write_text(f'#include "{source.name}"\n{entry}\n', encoding="utf-8")
        flags = ("-O1", *FLAGS, *INSTRUMENT, f"-fdebug-prefix-map={folder}/=")
        _run(folder, *flags, "-c", "-o", "entry.o", "entry.cpp")
        _run(folder, "-shared", "-o", str(output), "entry.o")

    return _compiled("kernel", texts, build)


def _compiled(kind: str, texts: list[tuple[str, str]], build: Any) -> Path:
    """The shared library that ``build`` makes of ``texts``, from the cache where it is there."""
    digest = hashlib.sha256()
    for part in (kind, host().version, *FLAGS, *INSTRUMENT, *(t for pair in texts for t in pair)):
        digest.update(f"{len(part)}:".encode() + part.encode())
    path = settings.CACHE_DIR.value() / "host" / f"{digest.hexdigest()}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        output = Path(folder) / "output.so"
        build(Path(folder), output)
        os.replace(output, path)
    return path


def _run(folder: Path, *arguments: str) -> None:
    command = [host().command, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")


def _line_of(library: Path, place: int) -> str:
    """The source lines of an address in the kernel: its own, then who called it inline."""
    base = _load_address(library)
    tool = shutil.which("addr2line")
    if base is None or tool is None:
        return f"{library.name}+{place - (base or 0):#x}"
    command = [tool, "-e", str(library), "-i", "-f", "-C", hex(place - base - 1)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    frames = []
    for function, line in zip(text[::2], text[1::2], strict=False):
        where = re.sub(r" \(discriminator \d+\)", "", Path(line).name)
        frames.append(f"{where} in {function.split('(')[0]}")
    return ", called from ".join(frames[:4])


def _load_address(library: Path) -> int | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(library)):
            return int(line.split("-")[0], 16)
    return None
