"""What a decode step needs, and which way W_UV goes."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

import kgen
from kgen.codegen.errors import ConfigError
from kgen.codegen.schema import Config, matrix, steps
from kgen.codegen.schema.value_bmm import Measured

from ...repo.test_scripts import load

SHAPE = {"heads": "8", "batch": "64"}


def slugs(archs: tuple[str, ...] = ("sm_90a",), **given: Any) -> list[str]:
    configs: tuple[Config, ...] = matrix.select((), None, SHAPE | given, archs=archs)
    return [config.slug for config in configs]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """sm_100a, where the GEMM is faster at 8x64 only; sm_90a, where it never is."""
    table = {
        "sm_100a": (Measured(8, 1, 1.0, 2.0), Measured(8, 64, 2.0, 1.0)),
        "sm_90a": (Measured(8, 64, 2.0, 2.5),),
    }
    monkeypatch.setitem(vars(sys.modules[Measured.__module__]), "MEASURED", table)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["query-h8-b64", "value-h8-b64"]),
        ({"q": "4"}, ["query-h8-b64", "value-h8-b64-q4"]),
        ({"dsa": True}, ["query-h8-b64-dsa", "index_front-b64", "value-h8-b64"]),
        ({"dcp": "2"}, ["query-h8-b64-dcp2", "dcp_value-h8-b64-dcp2"]),
        (
            {"dcp": "2", "dsa": True, "poll": False},
            [
                "query-h8-b64-dcp2-dsa-no_poll",
                "index_front-b64",
                "query_wait-h8-b64-dcp2-bf16",
                "dcp_value-h8-b64-dcp2-bf16",
            ],
        ),
        (
            {"dsa": True, "fp8": True, "mx": True, "release": False},
            [
                "query-h8-b64-dsa-fp8-no_release",
                "index_front-b64-mx-no_release",
                "value-h8-b64-no_release",
            ],
        ),
        (
            {"heads": "6,8", "batch": "1-2", "scheme": "rows,ksplit"},
            [
                f"{kernel}-h{heads}-b{batch}{tail}"
                for heads in (6, 8)
                for batch in (1, 2)
                for kernel, tail in (
                    ("query", "-scheme.rows"),
                    ("value", ""),
                    ("query", "-scheme.ksplit"),
                )
            ],
        ),
        ({"mx": False}, ["query-h8-b64", "value-h8-b64"]),
    ],
)
def test_kernels_of_a_step(given: dict[str, Any], names: list[str]) -> None:
    assert slugs(**given) == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mx": True}, "mx belongs to index_front.*only with dsa"),
        ({"dsa": True, "mx": True, "fp4": True}, "mx excludes fp4"),
        ({"fp8": True}, "fp8 needs dsa"),
        ({"q": "3"}, "q divides batch"),
        ({"lanes": "4"}, "lanes: got '4'.*heads, batch"),
        ({"batch": "0"}, "batch: got '0'"),
    ],
)
def test_a_step_that_makes_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slugs(**given)


def test_slugs_alone_are_no_step() -> None:
    configs: tuple[Config, ...] = matrix.select(("query-h8-b64",), None, {})
    assert [config.slug for config in configs] == ["query-h8-b64"]
    with pytest.raises(ConfigError, match="heads: got 'nothing'; query requires it"):
        matrix.select((), None, {})


def test_the_way_back_is_the_faster_one_of_each_target(timed: None) -> None:
    assert slugs(("sm_100a",)) == ["query-h8-b64", "gate-h8-b64"]
    assert slugs(("sm_100a",), batch="1") == ["query-h8-b1", "value-h8-b1"]
    assert slugs(("sm_90a",)) == ["query-h8-b64", "value-h8-b64"]
    assert slugs(("sm_90a", "sm_100a")) == ["query-h8-b64", "value-h8-b64", "gate-h8-b64"]


def test_every_field_of_a_step_is_known() -> None:
    known = steps.step_options()
    assert {"heads", "batch", "dsa", "mx", "fp4", "q", "release"} <= known.keys()
    assert known["heads"].required and not known["q"].required


@pytest.mark.parametrize(
    ("heads", "batch", "faster"), [(8, 64, True), (12, 200, True), (8, 1, False), (64, 7, False)]
)
def test_the_nearest_shape_decides(timed: None, heads: int, batch: int, faster: bool) -> None:
    assert kgen.value_bmm(heads, batch, "sm_100a") is faster
    assert kgen.value_bmm(heads, batch, "sm_90a") is False
    assert kgen.value_bmm(heads, batch, "sm_103a") is False, "nothing is measured there"


def test_the_table_has_both_sides_of_the_crossing() -> None:
    """On an H200 the GEMM pays from 12 heads and 256 rows on."""
    assert kgen.value_bmm(16, 256, "sm_90a") and kgen.value_bmm(128, 256, "sm_90a")
    assert not kgen.value_bmm(8, 256, "sm_90a") and not kgen.value_bmm(16, 64, "sm_90a")


def test_default_target_is_that_of_builds(timed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_ARCH", "sm_100a")
    assert kgen.value_bmm(8, 64)
    monkeypatch.setenv("KGEN_ARCH", "sm_90a")
    assert not kgen.value_bmm(8, 64)


@pytest.mark.parametrize("shape", [(0, 64), (8, 257), ("8", 64), (8, True)])
def test_bad_shapes_and_targets_are_named(shape: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(heads|batch): got"):
        kgen.value_bmm(*shape)
    with pytest.raises(ConfigError, match="arch: got 'sm_12'"):
        kgen.value_bmm(8, 64, "sm_12")


def test_the_benchmark_prints_the_lines_of_the_table() -> None:
    script = load("benchmarks/value_bmm.py")
    found = Measured(8, 64, 1.876, 2.5)
    (inside,) = re.findall(r"Measured\((.*)\),", script.entry(found))
    assert Measured(*(json.loads(f"[{inside}]"))) == Measured(8, 64, 1.88, 2.5)
    assert script.row(found) == ("8x64", "1.88", "2.50", "value kernel")
    assert script.row(Measured(8, 64, 2.0, 1.0))[-1] == "GEMM and gate"
