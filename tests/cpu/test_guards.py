"""Behind the checks of the CPU run: guard pages, signals, memory that follows what is touched."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import resource
import signal

import numpy as np
import pytest

import kgen
from kgen.codegen.emulator import executor, launch
from kgen.codegen.errors import EmulationError

from .small import arguments, kernel

pytestmark = pytest.mark.cpu

UNSEEN = """
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
UNSEEN void unseen(void* at) { *static_cast<volatile int*>(at) = 1; }
extern "C" void* mempcpy(void*, const void*, unsigned long);
UNSEEN int deep(int n) {
    volatile char frame[4096];
    frame[n % 4096] = 1;
    return n ? deep(n - 1) + frame[0] : 0;
}
"""
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux; Python 3.12 names it
WAIT = "griddepcontrol_wait();\n"
LAST = "if (threadIdx.x) return;\n"
BEHIND = "reinterpret_cast<uint8_t*>(params.q_c) + 4 * 1536 * 2"
PAST = [
    (f"unseen({BEHIND} + 8192);", "after the end of q_c"),
    ("unseen(const_cast<bf16*>(params.w_qa));", "at byte 0 of w_qa"),
    (f"mempcpy({BEHIND} - 512, params.w_qa, 9000 + params.num_rows);", "bytes after the end of"),
    ("unseen(dynamic_shared() + 4096);", "3072 bytes after the end of shared memory"),
    ("if (deep(1000)) return;", "has used up its stack"),
]


@pytest.mark.parametrize(("access", "words"), PAST, ids=lambda text: text[:20])
def test_what_no_check_sees_stops_at_a_guard_page(access: str, words: str) -> None:
    made = kernel(WAIT + LAST + access, before=UNSEEN)
    given = arguments(np.random.default_rng(1))
    before = {name: array.copy() for name, array in given.items()}
    held = [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGFPE)]
    with pytest.raises(EmulationError) as caught:
        made(given, seed=2)
    report = str(caught.value)
    assert words in report and "CTA (0, 0, 0) thread 0" in report and "seed 2" in report
    assert ".cu:" in report.split("at: ")[1]
    for name, array in given.items():
        np.testing.assert_array_equal(array, before[name])
    assert held == [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGFPE)]


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("params.q_c[0].bits = 7 / (params.num_rows - 4);", "divides by zero"),
        ("__builtin_trap();", "comes to where no code is"),
    ],
)
def test_what_a_gpu_leaves_undefined_is_reported(access: str, words: str) -> None:
    with pytest.raises(EmulationError, match=words):
        kernel(WAIT + LAST + access)(arguments(np.random.default_rng(1)))


def test_a_fault_of_the_process_itself_is_not_taken() -> None:
    """Handlers of before are there after a run, and a fault elsewhere goes to them."""
    faulthandler.enable()
    kernel(WAIT)(arguments(np.random.default_rng(1)))
    assert faulthandler.is_enabled()


TABLE = "static const int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};\nint counter;"


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("params.q_c[1].bits = table[params.num_rows];", ""),
        ("*const_cast<volatile int*>(&table[params.num_rows]) = 1;", "touches memory that is not"),
        ("params.q_c[1].bits = counter;", "reads 4 bytes outside"),
        ("counter = 1;", "writes 4 bytes outside"),
    ],
)
def test_constant_data_is_read_and_nothing_else_of_the_library(access: str, words: str) -> None:
    made, given = kernel(WAIT + LAST + access, before=TABLE), arguments(np.random.default_rng(1))
    if not words:
        made(given)
        assert given["q_c"][0, 1] == 5
        return
    with pytest.raises(EmulationError, match=words):
        made(given)


def test_memory_follows_what_is_touched() -> None:
    """A cache of 3 GB of which three rows are written."""
    pages, page, row = 5000, 1024, 576
    size = pages * page * row
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    cache = np.frombuffer(memory, np.uint8).reshape(pages, page, row)
    rng = np.random.default_rng(5)
    query = kgen.emulate("query", heads=1, batch=3)
    given = {
        "w_qa": rng.integers(0, 100, 1536, np.uint16),
        "w_kva": np.full(512, 0x3F80, np.uint16),
        "w_qb": rng.integers(0, 100, (192, 1536), np.uint16),
        "w_uk": rng.integers(0, 100, (1, 128, 512), np.uint16),
        "slots": np.array([0, size // row - 1, 2_000_003]),
        "q_scale_inv": np.ones(1, np.float32),
        "k_scale_inv": np.ones(1, np.float32),
    }
    qkv = np.full((3, 2112), 0x3F80, np.uint16)
    query(qkv, **given, cache=cache[:1], num_rows=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    query(qkv, **given, cache=cache)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 << 10, f"{grown} KB"
    assert cache.reshape(-1, row)[given["slots"]].any(axis=1).all()
    assert not cache[1].any() and not cache[-1, :-1].any()


@pytest.mark.parametrize("name", ["CArray", "CLaunch"])
def test_structs_of_another_size_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (("all", ctypes.c_char * (ctypes.sizeof(getattr(launch, name)) + 8)),)

    monkeypatch.setattr(executor, name, Longer)
    executor._machine.cache_clear()
    with pytest.raises(EmulationError, match=r"machine_\w+_bytes is \d+, but launch.py has \d+"):
        executor._machine()
    executor._machine.cache_clear()


def test_atomics_are_in_bounds_and_of_one_kind() -> None:
    rng = np.random.default_rng(1)
    given = arguments(rng)
    given["q_c"][:] = 0
    count = "atomicAdd(reinterpret_cast<uint32_t*>(params.q_c), 1u);"
    kernel(WAIT + count, threads=256)(given)
    assert given["q_c"].view(np.uint32)[0, 0] == 256
    mixed = f"{WAIT}{count}\n__syncthreads();\nif (threadIdx.x == 255) params.q_c[0].bits = 1;"
    with pytest.raises(EmulationError, match="writes byte 0 of q_c, which another warp writes too"):
        kernel(mixed, threads=256)(given)
