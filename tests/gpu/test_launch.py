"""Launches on a GPU: callers, streams, graphs, threads, devices and CPU time."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.codegen.errors import DeviceError
from kgen.codegen.runtime import driver
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.runtime.loader import Loader

pytestmark = pytest.mark.gpu

HEADS, BATCH, PAGES, PAGE = 2, 8, 4, 16
POISON = 0xA5
SLEEP_CYCLES = 20_000_000  # about 10 ms

Arrays = dict[str, Any]


def bf16(rng: np.random.Generator, *shape: int, scale: float) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def host_inputs(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "qkv": bf16(rng, BATCH, 2112, scale=1),
        "w_qa": bf16(rng, 1536, scale=1),
        "w_kva": bf16(rng, 512, scale=1),
        "w_qb": bf16(rng, HEADS * 192, 1536, scale=0.03),
        "w_uk": bf16(rng, HEADS, 128, 512, scale=0.1),
        "cache": np.full((PAGES, PAGE, 576), POISON, np.uint8),
        "slots": rng.permutation(PAGES * PAGE)[:BATCH].astype(np.int64),
        "q_scale_inv": np.array([2], np.float32),
        "k_scale_inv": np.array(0.5, np.float32),
        "out": np.full((BATCH, HEADS, 576), POISON, np.uint8),
    }


def in_cupy(seed: int = 0) -> Arrays:
    cupy = pytest.importorskip("cupy")
    made = {name: cupy.asarray(array) for name, array in host_inputs(seed).items()}
    cupy.cuda.Device().synchronize()
    return made


def in_torch(seed: int = 0, device: int = 0) -> Arrays:
    torch = pytest.importorskip("torch")
    made = {}
    for name, array in host_inputs(seed).items():
        tensor = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
        tensor = tensor.to(f"cuda:{device}")
        made[name] = tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
    made["out"] = made["out"].view(torch.float8_e4m3fn)
    torch.cuda.synchronize(device)
    return made


def to_host(array: Any) -> np.ndarray:
    if hasattr(array, "get"):
        return np.asarray(array.get()).view(np.uint8)
    import torch

    return np.asarray(array.view(torch.uint8).cpu().numpy())


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    made: Kernel = kgen.query(heads=HEADS, batch=BATCH)
    made.load()
    return made


@pytest.fixture(scope="module")
def expected(kernel: Kernel) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """(out, cache) of the inputs of a seed, from a plain call with nothing beside it."""
    known: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def of(seed: int) -> tuple[np.ndarray, np.ndarray]:
        if seed not in known:
            arrays = in_cupy(seed)
            kernel(pdl=False, **arrays)
            known[seed] = to_host(arrays["out"]), to_host(arrays["cache"])
        return known[seed]

    return of


def check(arrays: Arrays, want: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(to_host(arrays["out"]), want[0])
    np.testing.assert_array_equal(to_host(arrays["cache"]), want[1])


def sleep_cupy() -> None:
    import cupy

    code = """extern "C" __global__ void nap(long long cycles) {
        const long long start = clock64();
        while (clock64() - start < cycles) {}
    }"""
    cupy.RawKernel(code, "nap")((1,), (1,), (np.int64(SLEEP_CYCLES),))


@pytest.mark.parametrize("pdl", [True, False])
@pytest.mark.parametrize("make", [in_cupy, in_torch])
def test_callers_agree(kernel: Kernel, expected: Any, make: Any, pdl: bool) -> None:
    arrays = make()
    assert kernel(pdl=pdl, **arrays) is arrays["out"]
    check(arrays, expected(0))
    arrays = make(1)
    assert kernel.bind(pdl=pdl, **arrays)() is arrays["out"]
    check(arrays, expected(1))


@pytest.mark.parametrize(("make", "dtype"), [(in_cupy, "uint8"), (in_torch, "float8_e4m3fn")])
def test_output_is_allocated(kernel: Kernel, expected: Any, make: Any, dtype: str) -> None:
    arrays = make()
    del arrays["out"]
    out = kernel(num_rows=5, **arrays)
    assert tuple(out.shape) == (5, HEADS, 576) and str(out.dtype).endswith(dtype)
    np.testing.assert_array_equal(to_host(out), expected(0)[0][:5])


def test_libraries_mix_through_dlpack_and_interface(kernel: Kernel, expected: Any) -> None:
    class Interface:
        def __init__(self, array: Any) -> None:
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    class Dlpack:
        def __init__(self, array: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    arrays = in_cupy()
    mixed: dict[str, Any] = {
        name: (Interface if index % 2 else Dlpack)(array)
        for index, (name, array) in enumerate(arrays.items())
    }
    kernel(**mixed)
    check(arrays, expected(0))


@pytest.mark.parametrize("rows", [0, 1, 5, BATCH])
def test_rows_from_num_rows_on_are_untouched(kernel: Kernel, expected: Any, rows: int) -> None:
    arrays = in_cupy()
    kernel(num_rows=rows, **arrays)
    out, cache = expected(0)
    got = to_host(arrays["out"])
    np.testing.assert_array_equal(got[:rows], out[:rows])
    assert (got[rows:] == POISON).all()
    lines = to_host(arrays["cache"]).reshape(-1, 576)
    slots = host_inputs()["slots"]
    np.testing.assert_array_equal(lines[slots[:rows]], cache.reshape(-1, 576)[slots[:rows]])
    assert (np.delete(lines, slots[:rows], axis=0) == POISON).all()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("given", ["current", "object", "handle"])
def test_cupy_side_stream(kernel: Kernel, expected: Any, given: str, bound: bool) -> None:
    cupy = pytest.importorskip("cupy")
    arrays = in_cupy()
    qkv = arrays["qkv"].copy()
    arrays["qkv"].fill(0)
    launch = kernel.bind(**arrays) if bound else lambda **stream: kernel(**arrays, **stream)
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        sleep_cupy()
        arrays["qkv"][...] = qkv  # late: right only where the launch waits for this stream
        if given == "current":
            launch()
    if given != "current":
        launch(stream=side if given == "object" else side.ptr)
    side.synchronize()
    check(arrays, expected(0))


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("given", ["current", "object", "handle"])
def test_torch_side_stream(kernel: Kernel, expected: Any, given: str, bound: bool) -> None:
    torch = pytest.importorskip("torch")
    arrays = in_torch()
    qkv = arrays["qkv"].clone()
    arrays["qkv"].zero_()
    launch = kernel.bind(**arrays) if bound else lambda **stream: kernel(**arrays, **stream)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES)
        arrays["qkv"].copy_(qkv)
        if given == "current":
            launch()
    if given != "current":
        launch(stream=side if given == "object" else side.cuda_stream)
    side.synchronize()
    check(arrays, expected(0))


@pytest.mark.parametrize("bound", [False, True])
def test_cupy_graph(kernel: Kernel, expected: Any, bound: bool) -> None:
    cupy = pytest.importorskip("cupy")
    arrays = in_cupy()
    launch: Callable[[], Any] = kernel.bind(**arrays) if bound else lambda: kernel(**arrays)
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        side.begin_capture()
        launch()
        launch()
        graph = side.end_capture()
    cupy.cuda.Device().synchronize()
    assert (to_host(arrays["out"]) == POISON).all(), "capture must not run the kernel"
    for seed in (0, 1, 0):
        for name, array in in_cupy(seed).items():
            arrays[name][...] = array
        cupy.cuda.Device().synchronize()
        graph.launch(side)
        side.synchronize()
        check(arrays, expected(seed))


@pytest.mark.parametrize("bound", [False, True])
def test_torch_graph(kernel: Kernel, expected: Any, bound: bool) -> None:
    torch = pytest.importorskip("torch")
    arrays = in_torch()
    launch: Callable[[], Any] = kernel.bind(**arrays) if bound else lambda: kernel(**arrays)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
        launch()
    for seed in (0, 1, 0):
        for name, array in in_torch(seed).items():
            arrays[name].copy_(array)
        graph.replay()
        torch.cuda.synchronize()
        check(arrays, expected(seed))


def test_cold_kernel_under_capture_is_refused_and_the_capture_survives(expected: Any) -> None:
    torch = pytest.importorskip("torch")
    warm, cold = (kgen.query(heads=HEADS, batch=BATCH, release=mode) for mode in ("auto", "end"))
    driver.get().functions.pop((cold.artifact.cubin.image, 0), None)
    warm.load()
    arrays = in_torch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(DeviceError, match="captured"):
            cold(**arrays)
        warm(**arrays)
    graph.replay()
    torch.cuda.synchronize()
    check(arrays, expected(0))


def test_cold_load_of_one_thread_leaves_the_capture_of_another_alone(expected: Any) -> None:
    torch = pytest.importorskip("torch")
    warm = kgen.query(heads=HEADS, batch=BATCH)
    cold = Kernel(warm.artifact)
    warm.load()
    arrays = in_torch()
    failures: list[BaseException] = []

    def load() -> None:
        try:
            cold.load()
        except BaseException as error:
            failures.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        warm(**arrays)
    assert not failures
    graph.replay()
    torch.cuda.synchronize()
    check(arrays, expected(0))


@pytest.mark.parametrize("pdl", [True, False])
def test_a_chain_of_launches(kernel: Kernel, expected: Any, pdl: bool) -> None:
    arrays = in_cupy()
    step = kernel.bind(pdl=pdl, **arrays)
    for _ in range(1000):
        step()
    check(arrays, expected(0))


def run_threads(work: Callable[[int], None], count: int = 2) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_share_a_kernel(kernel: Kernel, expected: Any) -> None:
    torch = pytest.importorskip("torch")
    wanted = [expected(0), expected(1)]

    def work(seed: int) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(20):
                arrays = in_torch(seed)
                side.wait_stream(torch.cuda.default_stream())
                for _ in range(50):
                    kernel(**arrays)
                side.synchronize()
                check(arrays, wanted[seed])

    run_threads(work)


def test_fresh_threads_share_a_bound_launch(kernel: Kernel, expected: Any) -> None:
    """Threads that never touched CUDA have no current context."""
    cupy = pytest.importorskip("cupy")
    arrays = in_cupy()
    step = kernel.bind(**arrays)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def work(number: int) -> None:
        for _ in range(500):
            step(stream=streams[number].ptr)

    run_threads(work)
    cupy.cuda.Device().synchronize()
    check(arrays, expected(0))


def test_device_of_the_arrays(kernel: Kernel, expected: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    arrays = in_torch(device=1)
    with torch.cuda.device(0):
        kernel(**arrays)
        kernel.bind(**arrays)()
        assert torch.cuda.current_device() == 0
        out = kernel(**{**arrays, "out": None})
    torch.cuda.synchronize(1)
    assert out.get_device() == 1
    check(arrays, expected(0))
    with pytest.raises(kgen.ArgumentError, match=r"qkv is|cuda:1"):
        kernel(**{**arrays, "w_qa": in_torch()["w_qa"]})


def test_a_kernel_for_another_arch_is_refused() -> None:
    here = driver.get().device(0)
    arch = "sm_100a" if here.major == 9 else "sm_90a"
    other = kgen.query(heads=HEADS, batch=BATCH, arch=arch)
    with pytest.raises(DeviceError, match=f"arch: got a kernel for {arch}"):
        other(**in_cupy())


def test_a_cubin_that_the_driver_cannot_load_is_refused(kernel: Kernel) -> None:
    cubin: Any = SimpleNamespace(
        image=b"\x7fELF" + bytes(4096),
        entry="none",
        arch="sm_90a",
        resources=SimpleNamespace(smem_static=0),
    )
    with pytest.raises(DeviceError, match="cannot load a cubin for sm_90a"):
        Loader(kernel.plan, cubin).get(0, None)


def test_child_forked_after_import_can_launch(expected: Any) -> None:
    code = f"""
        import os, sys, kgen
        kernel = kgen.query(heads={HEADS}, batch={BATCH})
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        import cupy
        z = lambda shape, dtype="u2": cupy.zeros(shape, dtype)
        out = kernel(z(({BATCH}, 2112)), w_qa=z(1536), w_kva=z(512), w_qb=z(({HEADS * 192}, 1536)),
                     w_uk=z(({HEADS}, 128, 512)), cache=z((4, 16, 576), "u1"),
                     slots=cupy.full({BATCH}, -1, "i8"), q_scale_inv=cupy.ones(1, "f4"),
                     k_scale_inv=cupy.ones(1, "f4"))
        assert not out.get().any()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


def microseconds(launch: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """CPU time of a launch: median over rounds short enough to never fill the queue."""
    rounds = []
    for _ in range(30):
        synchronize()
        start = time.perf_counter()
        for _ in range(200):
            launch()
        rounds.append((time.perf_counter() - start) / 200 * 1e6)
    synchronize()
    return statistics.median(rounds)


@pytest.mark.bench
@pytest.mark.parametrize("make", [in_cupy, in_torch])
def test_cpu_time_of_a_launch(
    kernel: Kernel, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cupy = pytest.importorskip("cupy")
    arrays = make()
    step, synchronize = kernel.bind(**arrays), cupy.cuda.Device().synchronize
    bound = microseconds(step, synchronize)
    checked = microseconds(lambda: kernel(**arrays), synchronize)
    with capsys.disabled():
        print(f"\n{make.__name__}: bound {bound:.2f} µs, checked call {checked:.2f} µs")
    assert bound <= 5 and checked <= 25
