from __future__ import annotations

import threading
from typing import Any

import pytest

from kgen.codegen.errors import ConfigError, DeviceError, DriverError
from kgen.codegen.runtime.loader import Loader

from ...helpers import fakes
from ...helpers.fakes import FakeCuda, context_of, install

PATCH = pytest.MonkeyPatch


def loader(**changes: Any) -> Loader:
    return Loader(fakes.plan(**changes), fakes.cubin())


def test_loads_once_a_device_and_sets_attributes(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    subject = loader()
    first = subject.get(0, 0)
    assert subject.get(0, 0) is first
    assert (first.device.ordinal, first.context) == (0, context_of(0))
    assert subject.get(1, 0).context == context_of(1)
    assert cuda.names().count("cuModuleLoadData") == 2
    attributes = [call[2:] for call in cuda.calls if call[0] == "cuFuncSetAttribute"]
    assert attributes == [(8, 113936)] * 2
    assert cuda.stack == []


def test_large_clusters_need_the_non_portable_attribute(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    loader(cluster=16).get(0, 0)
    assert (14, 1) in [call[2:] for call in cuda.calls if call[0] == "cuFuncSetAttribute"]


def test_loading_leaves_the_captures_of_others_alone(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    loader().get(0, 0)
    names = cuda.names()
    exchange = [i for i, name in enumerate(names) if name == "cuThreadExchangeStreamCaptureMode"]
    assert exchange[0] < names.index("cuModuleLoadData") < exchange[1]


def test_cold_load_under_capture_is_refused_before_it_harms(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch, capturing={0x70})
    subject = loader()
    with pytest.raises(DeviceError, match=r"query_h2_b8 is not loaded on cuda:0 .*captured"):
        subject.get(0, 0x70)
    assert "cuModuleLoadData" not in cuda.names()
    subject.get(0, 0x71)
    assert subject.get(0, 0x70)


@pytest.mark.parametrize(
    ("machine", "changes", "message"),
    [
        ({"capability": (8, 0)}, {}, r"arch: got a kernel for sm_90a .*9\.0.*capability 8\.0"),
        ({"capability": (10, 0)}, {}, r"arch: got a kernel for sm_90a .*capability 10\.0"),
        ({"smem": 101376}, {}, r"shared memory: .* needs 113936 bytes .* allows 101376"),
        ({"clusters": 0}, {}, r"cluster: .* clusters of 8 blocks; .* has none"),
        ({"active_clusters": 0}, {"cluster": 16}, r"clusters of 16 blocks .* room for 0 of them"),
        ({"fails": {"cuOccupancyMaxActiveClusters": 912}}, {}, "clusters of 8 blocks .* room for"),
        (
            {"fails": {"cuModuleLoadData": 200}, "version": 12040},
            {},
            r"supports CUDA 12\.4, cannot load a cubin for sm_90a: CUDA_ERROR_INVALID_IMAGE.*13\.0",
        ),
        ({"fails": {"cuModuleLoadData": 209}}, {}, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    ],
)
def test_refused(
    monkeypatch: PATCH, machine: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    cuda, _ = install(monkeypatch, **machine)
    with pytest.raises(DeviceError, match=message):
        loader(**changes).get(0, 0)
    assert cuda.stack == [] and not cuda.launches


POLLING = {"polling": 8, "grid": (8, 8, 2)}


@pytest.mark.parametrize(
    ("ranks", "fit", "needed"), [("", 7, 8), ("2", 31, 32), ("4", 63, 64), ("1", 0, 0)]
)
def test_polling_clusters_that_do_not_fit_are_refused_with_both_numbers(
    monkeypatch: PATCH, ranks: str, fit: int, needed: int
) -> None:
    """A rank alone needs a tile's clusters, ranks on one GPU those of all tiles of each."""
    monkeypatch.setenv("KGEN_RANKS_PER_GPU", ranks)
    install(monkeypatch, active_clusters=fit)
    message = f"so {needed} clusters of 8 blocks .* fits {fit}: .*query_wait" if needed else "room"
    with pytest.raises(DeviceError, match=message):
        loader(**POLLING).get(0, 0)
    install(monkeypatch, active_clusters=max(needed, 8))
    assert loader(**POLLING).get(0, 0)


def test_what_does_not_poll_needs_no_room_for_others(monkeypatch: PATCH) -> None:
    monkeypatch.setenv("KGEN_RANKS_PER_GPU", "64")
    install(monkeypatch, active_clusters=1)
    assert loader().get(0, 0)


def test_ranks_per_gpu_is_a_number(monkeypatch: PATCH) -> None:
    monkeypatch.setenv("KGEN_RANKS_PER_GPU", "65")
    install(monkeypatch)
    with pytest.raises(ConfigError, match=r"KGEN_RANKS_PER_GPU: got '65'; allowed .* 1 to 64"):
        loader(**POLLING).get(0, 0)


@pytest.mark.parametrize("call", ["cuModuleGetFunction", "cuFuncSetAttribute", "cuModuleLoadData"])
def test_other_failures_are_translated(monkeypatch: PATCH, call: str) -> None:
    cuda, _ = install(monkeypatch, fails={call: 700})
    with pytest.raises(DriverError, match=f"{call} failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        loader().get(0, 0)
    assert cuda.stack == []


def test_no_such_device(monkeypatch: PATCH) -> None:
    install(monkeypatch, devices=1)
    with pytest.raises(DriverError, match="cuDeviceGet failed"):
        loader().get(3, 0)


def test_threads_load_once(monkeypatch: PATCH) -> None:
    cuda, _ = install(monkeypatch)
    subject = loader()
    threads = [threading.Thread(target=subject.get, args=(0, 0)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.names().count("cuModuleLoadData") == 1


def test_a_machine_is_a_fake() -> None:
    assert FakeCuda().cuInit(0) == 0
