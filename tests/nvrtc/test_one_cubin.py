"""One cubin a schedule: kernels that differ in launch data share what is compiled."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from kgen.codegen.aot.wheel import Label, wheel
from kgen.codegen.build import build, build_many
from kgen.codegen.cache.keys import Request
from kgen.codegen.plan import plan
from kgen.codegen.schema import Config, make, parse_slug

pytestmark = pytest.mark.nvrtc

TARGETS = ("sm_90a", "sm_100a")
STEP = [
    make(kernel, {"heads": 12, "batch": batch})
    for batch in range(1, 129)
    for kernel in ("query", "value")
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))


def test_a_decode_step_of_128_batches_compiles_few_sources(tmp_path: Path) -> None:
    results = build_many(STEP, TARGETS)
    origins = [result.artifact.origin for result in results if result.artifact]
    assert len(origins) == 512
    assert origins.count("compiled") <= 8 * len(TARGETS)
    assert origins.count("shared") == 512 - origins.count("compiled")
    for result in results:
        assert result.artifact and result.artifact.plan.config == result.config
    assert build(make("query", {"heads": 7, "batch": 100})).origin == "cache"


def test_a_wheel_holds_each_cubin_once(tmp_path: Path) -> None:
    made = [result.artifact for result in build_many(STEP, TARGETS) if result.artifact]
    path = tmp_path / "cubins.whl"
    path.write_bytes(wheel(made, Label()))
    with zipfile.ZipFile(path) as archive:
        cubins = [name for name in archive.namelist() if name.endswith(".cubin")]
        listing = json.loads(archive.read("kgen_cubins/manifest.json"))
    assert len(cubins) == len(listing["cubins"]) == len({a.key for a in made})
    assert len(listing["kernels"]) == 512
    assert {each["code"] for each in listing["kernels"]} == {c["code"] for c in listing["cubins"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("query-h8-b64", "query-h12-b40"),
        ("query-h8-b8-dsa", "query-h1-b1-dsa"),
        ("query-h8-b4-scheme.rows", "query-h8-b4"),
        ("query-h8-b8-dcp2", "query-h8-b1-dcp2"),
        ("value-h8-b64", "value-h6-b17"),
        ("gate-h8-b64", "gate-h6-b1"),
        ("index_front-b1", "index_front-b8"),
        ("query_norm-b1", "query_norm-b32"),
    ],
)
def test_launch_data_does_not_reach_the_compiler(one: str, other: str) -> None:
    first, second = (Request.of(parse_slug(slug), "sm_90a") for slug in (one, other))
    assert first.source == second.source and first.key == second.key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("query-h8-b8", "query-h8-b9"),
        ("query-h8-b8", "query-h8-b8-dsa"),
        ("query-h8-b8-dcp2", "query-h9-b8-dcp2"),
        ("value-h8-b64", "value-h8-b64-q2"),
        ("value-h8-b64", "value-h8-b64-no_release"),
    ],
)
def test_what_changes_machine_code_changes_the_key(one: str, other: str) -> None:
    first, second = (Request.of(parse_slug(slug), "sm_90a") for slug in (one, other))
    assert first.key != second.key and first.plan.code != second.plan.code


def test_equal_names_of_code_mean_equal_sources() -> None:
    seen: dict[str, str] = {}
    configs: list[Config] = [*STEP, *(make("index_front", {"batch": b}) for b in range(1, 257))]
    for config in configs:
        request = Request.of(config, "sm_90a")
        assert seen.setdefault(plan(config).code, request.code) == request.code
    assert len(set(seen.values())) == len(seen)
