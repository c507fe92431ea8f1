"""The generated kernels on a CPU: the rendered source compiled for the host and run, checked.

No CUDA library and no GPU is needed, only a C++20 compiler. See docs/emulation.md for what is
modelled.
"""

from __future__ import annotations

import ctypes
import posixpath
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from ..compiler.render import TEMPLATES, Source, render
from ..errors import EmulationError
from ..plan import Plan
from . import toolchain
from .launch import CArray, CLaunch, Rank, defaults, launch_of, touched

EXECUTOR = TEMPLATES / "emulator" / "executor"
TWINS = TEMPLATES / "emulator"  # headers here stand in for those of the same name in TEMPLATES
INSTRUMENT = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")
WRAPPED = tuple(f"-Wl,--wrap={name}" for name in ("memcpy", "memmove", "memset"))
FOLDER = "/kgen"  # of a kernel's sources, as its debug information has it
REPORT_BYTES = 8192


def emulate(plan: Plan, *, source: Source | None = None) -> Emulated:
    """The kernel of ``plan`` for the CPU; ``source`` stands in for the rendered one."""
    return Emulated(plan, source or render(plan))


_running = Lock()  # the machine runs one kernel at a time


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
        table = self.plan.params
        rows = scalars.get("num_rows", defaults(table)["num_rows"])
        packed = self.packed(arrays, scalars)
        self.run(packed, touched(table, arrays, int(rows)), seed=seed, lazy=lazy)

    def packed(self, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> bytes:
        """The parameter struct of these arguments; a scalar that lacks has its default."""
        return self.plan.params.pack(_fields(self.plan, arrays, scalars))

    def run(self, packed: bytes, arrays: Mapping[str, Any], *, seed: int, lazy: bool) -> None:
        """Run the kernel with the parameter struct ``packed``, whose arrays are ``arrays``."""
        self.run_ranks([Rank(packed, arrays)], seed=seed, lazy=lazy)

    def run_ranks(self, ranks: Sequence[Rank], *, seed: int, lazy: bool) -> None:
        """Run the kernel on every rank at once, all of their clusters resident."""
        report = ctypes.create_string_buffer(REPORT_BYTES)
        launches = (CLaunch * len(ranks))(*(launch_of(self.plan, rank, report) for rank in ranks))
        for each in launches:
            each.entry = ctypes.cast(self._entry, ctypes.c_void_p)
            each.seed, each.lazy = seed, lazy
        with _running:
            failed = _machine().machine_run(launches, len(ranks))
        if failed:
            text = report.value.decode(errors="replace")
            raise EmulationError(self._explain(text, launches[0].places, seed))

    def _explain(self, report: str, places: Any, seed: int) -> str:
        """``report`` with source lines for the addresses: its two places, and each ``<0x..>``."""
        text = re.sub(r"<(0x[0-9a-f]+)>", lambda m: line_of(self.library, int(m[1], 16)), report)
        lines = [f"{self.plan.config.slug}: {text}"]
        for word, place in zip(("at", "partner"), places, strict=True):
            if place:
                lines.append(f"  {word}: {line_of(self.library, place)}")
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
    return {**values, **defaults(plan.params), **scalars}


@cache
def _machine() -> Any:
    """The executor, loaded so that kernels find its symbols."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(EXECUTOR.iterdir())]

    def build(work: Path, output: Path) -> None:
        toolchain.run(work, "-O3", *toolchain.FLAGS, "-shared", "-o", str(output), "machine.cpp")

    path = toolchain.library("machine", texts, toolchain.FLAGS, build)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for name, mine in (("machine_array_bytes", CArray), ("machine_launch_bytes", CLaunch)):
        theirs = ctypes.c_uint64.in_dll(library, name).value
        if theirs != ctypes.sizeof(mine):
            raise EmulationError(f"{name} is {theirs}, but launch.py has {ctypes.sizeof(mine)}")
    library.machine_run.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def _kernel_library(source: Source) -> Path:
    twins = {
        str(p.relative_to(TWINS)): p.read_text(encoding="utf-8")
        for p in sorted(TWINS.glob("ptx/*"))
    }
    interface = [(p.name, p.read_text(encoding="utf-8")) for p in sorted(EXECUTOR.glob("*.h"))]
    headers = dict(source.headers) | twins
    call = f"{source.entry}(*static_cast<const Params*>(params));"
    entry = f'extern "C" void machine_entry(const void* params) {{ {call} }}'
    main = ("entry.cpp", f'#include "{source.name}"\n{entry}\n')
    flags = ("-O1", *toolchain.FLAGS, *INSTRUMENT)

    def build(work: Path, output: Path) -> None:
        renamed = f"-fdebug-prefix-map={work}={FOLDER}"
        toolchain.run(work, *flags, renamed, "-c", "-o", "entry.o", main[0])
        toolchain.run(work, "-shared", *WRAPPED, "-o", str(output), "entry.o")

    texts = [(source.name, source.text), *headers.items(), *interface, main]
    return toolchain.library("kernel", texts, flags, build)


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def line_of(library: Path, place: int) -> str:
    """The source lines of an address in the kernel: its own, then who called it inline."""
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(place), ctypes.byref(info))
    offset, tool = place - (info.base or 0), shutil.which("addr2line")
    if not info.base or not tool:
        return f"{library.name}+{offset:#x} (addr2line of binutils would name the line)"
    command = [tool, "-e", str(library), "-i", "-f", "-C", hex(offset - 1)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    frames = []
    for function, line in zip(text[::2], text[1::2], strict=False):
        line = re.sub(r" \(discriminator \d+\)", "", line)
        where = posixpath.normpath(line).removeprefix(f"{FOLDER}/")
        frames.append(f"{where} in {function.split('(')[0]}")
    return ", called from ".join(frames[:4])
