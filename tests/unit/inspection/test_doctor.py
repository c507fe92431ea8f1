"""The doctor: every probe guarded, what is absent told from what failed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kgen import cli
from kgen.codegen.errors import DeviceError
from kgen.codegen.inspection import doctor
from kgen.codegen.runtime import nvml


def broken() -> doctor.Details:
    raise ZeroDivisionError("of course")


def absent() -> doctor.Details:
    raise DeviceError("no GPU: none at all")


@pytest.mark.nvrtc
def test_probes_here() -> None:
    found = {finding.name: finding for finding in doctor.examine()}
    assert list(found) == list(doctor.PROBES)
    assert doctor.healthy(found.values()), found
    assert "libnvrtc" in found["nvrtc"].details["path"]
    assert found["nvrtc"].details["version"].startswith("13.")
    assert found["headers"].details["toolkit"] == "none needed"
    assert "not installed" not in found["packages"].details.values()
    assert {"click", "pydantic", "nvidia-cuda-nvrtc"} <= found["packages"].details.keys()


@pytest.mark.parametrize("name", doctor.PROBES)
def test_a_failing_probe_hides_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in doctor.PROBES:
        monkeypatch.setitem(doctor.PROBES, other, dict)
    monkeypatch.setitem(doctor.PROBES, name, broken)
    findings = doctor.examine()
    assert [finding.state for finding in findings].count("ok") == len(doctor.PROBES) - 1
    (failed,) = (finding for finding in findings if finding.state == "failed")
    assert (failed.name, failed.error) == (name, "ZeroDivisionError: of course")
    result = CliRunner().invoke(cli.kgen, ["doctor"])
    assert result.exit_code == 1
    assert f"{name}: failed: ZeroDivisionError: of course" in result.stdout


def test_an_absent_gpu_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.PROBES:
        monkeypatch.setitem(doctor.PROBES, name, dict)
    monkeypatch.setitem(doctor.PROBES, "gpus", absent)
    result = CliRunner().invoke(cli.kgen, ["doctor", "--json"])
    assert result.exit_code == 0
    found = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert found["gpus"]["state"] == "absent"
    assert found["gpus"]["error"] == "no GPU: none at all"


def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = nvml.Gpu(0, "H200", "9.0", 150_754_820_096, "sm_90a")
    monkeypatch.setattr(nvml, "gpus", lambda: (gpu,))
    details = doctor.PROBES["gpus"]()
    assert details["gpu 0"]["target"] == "sm_90a"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((), "NVML lists none"),
        ((nvml.Gpu(0, "A100", "8.0", 1, None),), r"found A100 \(8\.0\)"),
    ],
)
def test_require(
    found: tuple[nvml.Gpu, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: found)
    with pytest.raises(DeviceError, match=message):
        nvml.require()
