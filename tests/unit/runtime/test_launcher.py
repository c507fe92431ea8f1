from __future__ import annotations

import threading

import pytest

from kgen.codegen.errors import DriverError
from kgen.codegen.runtime.launcher import Launcher

from ...helpers import fakes
from ...helpers.fakes import context_of, install

PATCH = pytest.MonkeyPatch
SIZE = fakes.table().size


def launcher() -> Launcher:
    return Launcher(fakes.plan(), fakes.cubin())


def test_a_launch_hands_over_everything(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    subject = launcher()
    function = subject.function(0, 0x70)
    packed = bytes(range(SIZE))
    subject.launch(function, packed, 0x70, True)
    subject.launch(function, packed[::-1], 0, False)
    first, second = cuda.launches
    assert (first.grid, first.block, first.smem) == ((16, 1, 1), (288, 1, 1), 113936)
    assert (first.stream, first.pdl, first.params) == (0x70, True, packed)
    assert (second.stream, second.pdl, second.params) == (0, False, packed[::-1])
    assert first.function == function.handle.value


def test_context_of_the_device_is_current_and_restored(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    subject = launcher()
    function = subject.function(1, 0)
    for before in ([], [context_of(0)], [context_of(1)]):
        cuda.stack[:] = before
        subject.launch(function, bytes(SIZE), 0, True)
        assert cuda.launches[-1].context == context_of(1)
        assert cuda.stack == before


def test_a_refused_launch_is_translated_and_harms_no_later_one(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch, fails={"cuLaunchKernelEx": 701})
    subject = launcher()
    function = subject.function(0, 0)
    message = r"cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\)"
    with pytest.raises(DriverError, match=message):
        subject.launch(function, bytes(SIZE), 0, True)
    assert cuda.stack == []
    cuda.fails.clear()
    subject.launch(function, bytes(SIZE), 0, True)
    assert len(cuda.launches) == 1


def test_threads_never_mix_streams_or_parameters(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    subject = launcher()
    function = subject.function(0, 0)

    def work(number: int) -> None:
        for _ in range(200):
            subject.launch(function, bytes([number]) * SIZE, number, bool(number % 2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cuda.launches) == 1600
    for launch in cuda.launches:
        assert launch.params == bytes([launch.stream]) * SIZE
        assert launch.pdl == bool(launch.stream % 2)
        assert launch.context == context_of(0)
