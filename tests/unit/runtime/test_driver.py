from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from kgen.codegen.errors import DeviceError, DriverError
from kgen.codegen.runtime import driver
from kgen.codegen.runtime.driver import Driver, LaunchAttribute, LaunchConfig

from ...helpers.fakes import FakeCuda, context_of


def test_struct_layouts_are_those_of_cuda_h() -> None:
    assert ctypes.sizeof(LaunchConfig) == 56
    assert (LaunchConfig.stream.offset, LaunchConfig.attributes.offset) == (32, 40)
    assert LaunchConfig.num_attributes.offset == 48
    assert (ctypes.sizeof(LaunchAttribute), LaunchAttribute.value.offset) == (72, 8)


def test_constants_are_those_of_the_cuda_bindings() -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    device, function = cuda.CUdevice_attribute, cuda.CUfunction_attribute
    name = "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"
    assert getattr(device, name) == driver.SMEM_PER_BLOCK
    assert driver.CLUSTER_LAUNCH == device.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
    name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert getattr(function, name) == driver.MAX_DYNAMIC_SMEM
    name = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    assert getattr(function, name) == driver.NON_PORTABLE_CLUSTER
    attributes = cuda.CUlaunchAttributeID
    name = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert getattr(attributes, name) == driver.PROGRAMMATIC_STREAM_SERIALIZATION
    assert cuda.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE == driver.INVALID_CLUSTER_SIZE


def test_a_failed_call_names_itself_the_code_and_its_meaning() -> None:
    cuda = Driver(FakeCuda(fails={"cuDeviceGet": 101}))
    with pytest.raises(DriverError, match=r"cuDeviceGet failed with .*\(101\): what it means"):
        cuda.device(0)


@pytest.mark.parametrize(("code", "hint"), [(3, "spawn"), (700, "earlier kernel")])
def test_some_codes_carry_a_hint(code: int, hint: str) -> None:
    assert hint in str(Driver(FakeCuda()).error("cuLaunchKernelEx", code))


def test_a_driver_that_does_not_start_is_a_device_error() -> None:
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        Driver(FakeCuda(fails={"cuInit": 100}))


def test_a_driver_without_the_launch_call_is_too_old() -> None:
    with pytest.raises(DeviceError, match=r"too old.*CUDA 13\.0"):
        Driver(SimpleNamespace(cuInit=lambda flags: 0))


def test_no_driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(driver, "_driver", None)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match=r"no CUDA driver here: libcuda\.so\.1"):
        driver.get()


def test_current_restores_what_was_there() -> None:
    fake = FakeCuda()
    cuda = Driver(fake)
    fake.stack.append(context_of(1))
    with pytest.raises(KeyError), cuda.current(context_of(0)):
        assert fake.stack[-1] == context_of(0)
        raise KeyError
    assert fake.stack == [context_of(1)]


def test_devices_are_asked_once() -> None:
    fake = FakeCuda()
    cuda = Driver(fake)
    assert cuda.device(1) is cuda.device(1)
    assert fake.names().count("cuDevicePrimaryCtxRetain") == 1
    assert str(cuda.device(1)) == "cuda:1 (NVIDIA Fake, compute capability 9.0)"


def test_import_never_touches_the_driver() -> None:
    code = """
        import ctypes, sys
        real = ctypes.CDLL.__init__
        def watch(self, name, *rest, **more):
            assert "libcuda" not in str(name), name
            real(self, name, *rest, **more)
        ctypes.CDLL.__init__ = watch
        import kgen
        assert not {"cupy", "pydantic", "jinja2", "numpy"} & set(sys.modules), "heavy import"
        kgen.query, kgen.Kernel, kgen.ArgumentError
        assert not {"cupy", "torch"} & set(sys.modules), "array library imported"
        from kgen.codegen.runtime import driver
        assert driver._driver is None
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
