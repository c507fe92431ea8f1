"""The generated kernels on a CPU: the rendered source compiled for the host and run, checked.

No CUDA library and no GPU is needed, only a C++20 compiler. See docs/emulation.md for what is
modelled.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..compiler.render import TEMPLATES, Source, render
from ..errors import EmulationError
from ..plan import Array, Plan
from . import toolchain

EXECUTOR = TEMPLATES / "emulator" / "executor"
TWINS = TEMPLATES / "emulator"  # headers here stand in for those of the same name in TEMPLATES
INSTRUMENT = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")
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
        ("multicast", ctypes.c_void_p),
        ("mailboxes", ctypes.POINTER(ctypes.c_void_p)),
        ("num_mailboxes", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Rank:
    """One rank's launch: its parameter struct and arrays; for DCP the addresses of all ranks'
    mailboxes, the one that stands for them all, and its own mailbox where the kernel polls none."""

    packed: bytes
    arrays: Mapping[str, Any]
    number: int = 0
    mailboxes: tuple[int, ...] = ()
    multicast: int = 0
    unpolled: np.ndarray[Any, Any] | None = None


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
        self.run(self.packed(arrays, scalars), arrays, seed=seed, lazy=lazy)

    def packed(self, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> bytes:
        """The parameter struct of these arguments; a scalar that lacks has its default."""
        return self.plan.params.pack(_fields(self.plan, arrays, scalars))

    def run(self, packed: bytes, arrays: Mapping[str, Any], *, seed: int, lazy: bool) -> None:
        """Run the kernel with the parameter struct ``packed``, whose arrays are ``arrays``."""
        self.run_ranks([Rank(packed, arrays)], seed=seed, lazy=lazy)

    def run_ranks(self, ranks: Sequence[Rank], *, seed: int, lazy: bool) -> None:
        """Run the kernel on every rank at once, all of their clusters resident."""
        report = ctypes.create_string_buffer(REPORT_BYTES)
        launches = (_Launch * len(ranks))(*(self._launch(rank, report) for rank in ranks))
        launches[0].seed, launches[0].lazy = seed, lazy
        with _running:
            failed = _machine().machine_run(launches, len(ranks))
        if failed:
            text = report.value.decode(errors="replace")
            raise EmulationError(self._explain(text, launches[0].places, seed))

    def _launch(self, rank: Rank, report: Any) -> _Launch:
        plan, buffers = self.plan, _buffers(self.plan, rank)
        return _Launch(
            entry=ctypes.cast(self._entry, ctypes.c_void_p),
            params=ctypes.cast(ctypes.c_char_p(rank.packed), ctypes.c_void_p),
            params_bytes=len(rank.packed),
            grid=(ctypes.c_uint32 * 3)(*plan.grid),
            cluster=plan.cluster,
            threads=plan.threads,
            smem=plan.smem_bytes,
            late=bool(getattr(plan.config, "late", False)),
            buffers=buffers,
            num_buffers=len(buffers),
            report=ctypes.cast(report, ctypes.c_char_p),
            report_bytes=REPORT_BYTES,
            multicast=rank.multicast,
            mailboxes=(ctypes.c_void_p * len(rank.mailboxes))(*rank.mailboxes),
            num_mailboxes=len(rank.mailboxes),
            rank=rank.number,
        )

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
    for scalar in plan.params.scalars:
        default = 0 if scalar.default is None else scalar.default
        values[scalar.name] = scalars.get(scalar.name, default)
    return values


def _kind(array: Array) -> int:
    """0: constant in a chain of launches; 1: of this step, read; 2: written."""
    if array.role != "in":
        return 2
    return int(any(axis.rows for axis in array.axes))


def _buffers(plan: Plan, rank: Rank) -> Any:
    held = [(array.name, rank.arrays[array.name], _kind(array)) for array in plan.params.arrays]
    if rank.unpolled is not None:
        held.append(("mailbox", rank.unpolled, 2))
    made = []
    for name, given, kind in held:
        low, high = np.lib.array_utils.byte_bounds(given)
        made.append(_Buffer(name.encode(), low, high - low, kind, 0))
    return (_Buffer * len(made))(*made)


@cache
def _machine() -> Any:
    """The executor, loaded so that kernels find its symbols."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(EXECUTOR.iterdir())]

    def build(work: Path, output: Path) -> None:
        toolchain.run(work, "-O2", *toolchain.FLAGS, "-shared", "-o", str(output), "machine.cpp")

    path = toolchain.library("machine", texts, toolchain.FLAGS, build)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
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
        toolchain.run(work, *flags, f"-fdebug-prefix-map={work}/=", "-c", "-o", "entry.o", main[0])
        toolchain.run(work, "-shared", "-o", str(output), "entry.o")

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
        where = re.sub(r" \(discriminator \d+\)", "", Path(line).name)
        frames.append(f"{where} in {function.split('(')[0]}")
    return ", called from ".join(frames[:4])
