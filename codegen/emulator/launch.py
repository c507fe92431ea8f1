"""A launch as the executor takes it: the structs of ``launch.h``, made of a plan and its arrays."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dcp.mailboxes import TABLES
from ..plan import Array, ParamTable, Plan

LEVELS = 3
MAILBOX = "mailbox"  # of queries; a kernel that does not poll it has no such argument
CONSTANT, STEP_IN, STEP_OUT = range(3)  # kinds of arrays


class Level(ctypes.Structure):
    """Items of an array, ``stride`` bytes apart."""

    _fields_ = (("extent", ctypes.c_uint64), ("stride", ctypes.c_uint64))


class CArray(ctypes.Structure):
    """``Array`` of ``launch.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("home", ctypes.c_void_p),
        ("span", ctypes.c_uint64),
        ("run", ctypes.c_uint64),
        ("levels", Level * LEVELS),
        ("num_levels", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("place", ctypes.c_int32),
        ("addresses", ctypes.c_int32),
    )


class CLaunch(ctypes.Structure):
    """``Launch`` of ``launch.h``."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("smem", ctypes.c_uint32),
        ("late", ctypes.c_int32),
        ("lazy", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("arrays", ctypes.POINTER(CArray)),
        ("report", ctypes.c_char_p),
        ("report_bytes", ctypes.c_uint64),
        ("places", ctypes.c_void_p * 2),
        ("multicast", ctypes.c_void_p),
        ("num_arrays", ctypes.c_int32),
        ("mailbox", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("unused", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Rank:
    """One rank's launch: its parameter struct and what it may touch of its arrays; for DCP its
    query mailbox, argument or not, and the address that stands for those of all ranks."""

    packed: bytes
    arrays: Mapping[str, Any]
    number: int = 0
    multicast: int = 0


def within(array: Array, rows: range) -> tuple[slice, ...]:
    """The index of what a launch of ``rows`` may touch of an argument."""
    return tuple(
        slice(rows.start // axis.per, -(-rows.stop // axis.per)) if axis.rows else slice(None)
        for axis in array.axes
    )


def defaults(table: ParamTable) -> dict[str, int | float]:
    """The by-value arguments; 0 where one has no default."""
    return {scalar.name: scalar.default or 0 for scalar in table.scalars}


def touched(table: ParamTable, arrays: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """What a launch of ``rows`` rows may touch of each array."""
    return {a.name: arrays[a.name][within(a, range(rows))] for a in table.arrays}


def launch_of(plan: Plan, rank: Rank, report: Any) -> CLaunch:
    """The launch of ``plan`` on one rank; its faults are written to the buffer ``report``."""
    arrays = _arrays(plan.params, rank)
    names = [array.name.decode() for array in arrays]
    return CLaunch(
        params=ctypes.cast(ctypes.c_char_p(rank.packed), ctypes.c_void_p),
        params_bytes=len(rank.packed),
        grid=(ctypes.c_uint32 * 3)(*plan.grid),
        cluster=plan.cluster,
        threads=plan.threads,
        smem=plan.smem_bytes,
        late=bool(getattr(plan.config, "late", False)),
        arrays=(CArray * len(arrays))(*arrays),
        num_arrays=len(arrays),
        report=ctypes.cast(report, ctypes.c_char_p),
        report_bytes=len(report),
        multicast=rank.multicast,
        mailbox=names.index(MAILBOX) if MAILBOX in names else -1,
        rank=rank.number,
    )


def _arrays(table: ParamTable, rank: Rank) -> list[CArray]:
    arguments, places = {array.name: array for array in table.arrays}, dict(_places(table))
    return [
        described(name, array, _kind(arguments.get(name)), places.get(name, -1))
        for name, array in rank.arrays.items()
    ]


def _kind(array: Array | None) -> int:
    if array is None or array.role != "in":
        return STEP_OUT
    return STEP_IN if any(axis.rows for axis in array.axes) else CONSTANT


def _places(table: ParamTable) -> list[tuple[str, int]]:
    """Where each field of the parameter struct lies."""
    codes = [field.code for field in table.fields]
    ends = [struct.calcsize("<" + "".join(codes[: i + 1])) for i in range(len(codes))]
    return [(f.name, end - f.size) for f, end in zip(table.fields, ends, strict=True)]


def described(name: str, array: np.ndarray[Any, Any], kind: int, place: int = -1) -> CArray:
    """``array`` as runs of bytes; ``place`` is that of its pointer in the parameter struct."""
    levels, run, span = runs(array)
    return CArray(
        name=name.encode(),
        home=array.ctypes.data,
        span=span,
        run=run,
        levels=(Level * LEVELS)(*(Level(*level) for level in levels)),
        num_levels=len(levels),
        kind=kind,
        place=place,
        addresses=name in TABLES,
    )


def runs(array: np.ndarray[Any, Any]) -> tuple[list[tuple[int, int]], int, int]:
    """Extents and strides of the runs of ``array``, outermost first, the bytes of a run, and those
    from the first to the last. Items that touch or overlap are of one run."""
    if not array.size:
        return [], 0, 0
    levels: list[tuple[int, int]] = []
    run = span = array.itemsize
    for stride, extent in sorted(zip(array.strides, array.shape, strict=True)):
        if extent > 1:
            whole = stride < span if levels else stride <= run
            span += stride * (extent - 1)
            levels, run = ([], span) if whole else ([(extent, stride), *levels], run)
    return levels, run, span
