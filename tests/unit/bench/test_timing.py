"""Timings as they are reported, and how weight sets are counted; no GPU is needed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kgen import cli
from kgen.codegen import schema
from kgen.codegen.bench import timing, uncached
from kgen.codegen.bench.baseline import yardstick
from kgen.codegen.bench.timing import Machine, Report, Timing
from kgen.codegen.errors import DeviceError
from kgen.codegen.plan import ParamTable, plan
from kgen.codegen.runtime import nvml

from ...helpers.places import ROOT

MACHINE = Machine("NVIDIA H200", "580.1", "13.0", "13.5+abc", "2026-01-02")
TIMINGS = (
    Timing("query-h8-b1", "sm_90a", "rows-8-1", 1.34, 2.68, 24),
    Timing("query-h8-b64", "sm_90a", "ksplit-32-8", 1.5, 7.5, 24),
)
REPORT = Report(MACHINE, 30, 1.5, TIMINGS)


def query_table(**fields: object) -> ParamTable:
    return plan(schema.make("query", {"heads": 8, "batch": 64} | fields)).params


def test_text_is_a_table() -> None:
    machine, method, blank, header, first, second = REPORT.text().splitlines()
    assert machine == "NVIDIA H200, driver 580.1 (CUDA 13.0), NVRTC 13.5+abc, 2026-01-02"
    assert "median of 30 replays; yardstick 1.50" in method and not blank
    assert header.split() == [
        *("kernel", "schedule", "floor", "measured", "/", "floor", "/", "yardstick", "sets")
    ]
    assert first.split() == ["query-h8-b1", "rows-8-1", "1.34", "2.68", "2.00", "1.79", "24"]
    assert second.split()[2:6] == ["1.50", "7.50", "5.00", "5.00"]


def test_data_is_json() -> None:
    data = json.loads(json.dumps(REPORT.data()))
    assert data["machine"]["gpu"] == "NVIDIA H200" and data["yardstick"] == 1.5
    assert data["timings"][1] == {
        "slug": "query-h8-b64",
        "arch": "sm_90a",
        "schedule": "ksplit-32-8",
        "floor": 1.5,
        "measured": 7.5,
        "sets": 24,
        "of_floor": 5.0,
        "of_yardstick": 5.0,
    }


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_command_prints_the_report(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]) -> None:
    monkeypatch.setattr(nvml, "require", lambda: None)
    asked: list[int] = []

    def run(configs: tuple[schema.Config, ...], replays: int) -> Report:
        asked.append(replays)
        return REPORT

    monkeypatch.setattr(timing, "run", run)
    result = CliRunner().invoke(cli.kgen, ["bench", "query-h8-b1", "--replays", "5", *flags])
    assert result.exit_code == 0 and asked == [5], result.output
    if flags:
        assert json.loads(result.stdout) == json.loads(json.dumps(REPORT.data()))
    else:
        assert result.stdout == REPORT.text() + "\n"


def test_run_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise DeviceError("no GPU: none")

    monkeypatch.setattr(nvml, "require", absent)
    with pytest.raises(DeviceError, match="no GPU"):
        timing.run([])


def test_weights_are_what_no_token_owns() -> None:
    names = [array.name for array in query_table().arrays if timing.is_weight(array)]
    assert names == ["w_qa", "w_kva", "w_qb", "w_uk"]
    assert not any(map(timing.is_weight, yardstick("sm_90a").plan.params.arrays))


def test_schedules_are_all_that_plans_choose() -> None:
    found = uncached.schedules()
    assert {schedule.scheme for schedule in found.values()} == {"folded", "rows", "ksplit", "wgmma"}
    assert all(uncached.name(schedule) == name for name, schedule in found.items())
    config = schema.make("query", {"heads": 2, "batch": 100})
    planned = {plan(config, "sm_90a", schedule).schedule for schedule in found.values()}
    assert planned == set(found.values())


MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "l2", "free", "count"),
    [
        (6 * MIB, 50 * MIB, 100_000 * MIB, 24),  # as the specification says
        (1 * MIB, 50 * MIB, 100_000 * MIB, 101),  # more, to exceed the L2
        (100 * MIB, 50 * MIB, 1000 * MIB, 9),  # fewer where memory is short
        (0, 50 * MIB, 0, 1),
    ],
)
def test_weight_sets(size: int, l2: int, free: int, count: int) -> None:
    assert timing.set_count(size, l2, free) == count


def test_too_little_memory_is_said() -> None:
    with pytest.raises(DeviceError, match=r"memory: .* 104,857,600 bytes, 1,048,576 free"):
        timing.set_count(100 * MIB, 50 * MIB, MIB)


def ranks(model: type[schema.Config]) -> bool:
    """Whether a family is of several ranks, which bench refuses."""
    return any(option.name == "dcp" and option.required for option in schema.options(model))


@pytest.mark.parametrize("kernel", [k for k, m in schema.KERNELS.items() if not ranks(m)])
def test_every_family_gets_all_its_arguments(kernel: str) -> None:
    known = {option.name for option in schema.options(schema.model_of(kernel))}
    fields = {name: value for name, value in (("heads", 4), ("batch", 8)) if name in known}
    table = plan(schema.make(kernel, fields)).params
    made = timing.host_arguments(table)
    needed = {scalar.name for scalar in table.scalars if scalar.default is None}
    assert set(made) == needed | {array.name for array in table.arrays}
    width = made[table.arrays[0].name].shape[-1]
    for scalar in table.scalars:
        assert scalar.name not in needed or made[scalar.name] + scalar.columns <= width


@pytest.mark.parametrize("fields", [{}, {"dsa": True}, {"batch": 1, "heads": 3}])
def test_host_arrays_have_the_shapes_of_the_table(fields: dict[str, object]) -> None:
    table = query_table(**fields)
    made = timing.host_arguments(table)
    for array in table.arrays:
        assert made[array.name].ndim == len(array.axes)
        assert made[array.name].itemsize == array.itemsize
    assert len(set(made["slots"].tolist())) == len(made["qkv"])
    assert made["slots"].max() < made["cache"].shape[0] * made["cache"].shape[1]


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_yardstick_compiles(arch: str) -> None:
    kernel = yardstick(arch)
    resources = kernel.artifact.cubin.resources
    assert (resources.spill_stores, resources.local_bytes) == (0, 0)
    assert "asm" not in (ROOT / "templates/yardstick.cu").read_text()
    cluster_ctas = kernel.plan.grid[0] * kernel.plan.grid[1]
    assert (cluster_ctas, kernel.plan.cluster) == (64, 8)
