"""The modes of ``release``: what ``auto`` means, how modes are spelt, and what refuses one."""

from __future__ import annotations

from typing import Any

import pytest

from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import KERNELS, Config, make, parse_slug, select

DSA = {"heads": 8, "batch": 8, "dsa": True}


def planned(slug: str) -> Plan:
    return plan(parse_slug(slug))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_family_has_the_modes(kernel: str) -> None:
    required = {"heads": 1, "batch": 1, "dcp": 2}
    fields = {name: required[name] for name in required if name in KERNELS[kernel].model_fields}
    fields = {name: value for name, value in fields.items() if kernel != "query" or name != "dcp"}
    for mode in ("start", "wait", "end"):
        assert plan(make(kernel, fields | {"release": mode})).release == mode
    assert plan(make(kernel, fields)).release in ("start", "wait")


@pytest.mark.parametrize(("value", "mode"), [(True, "auto"), (False, "end"), ("end", "end")])
def test_a_boolean_is_a_mode(value: Any, mode: str) -> None:
    assert make("query", DSA | {"release": value}).changed().get("release", "auto") == mode


@pytest.mark.parametrize(
    ("token", "spelt"),
    [
        ("no_release", "no_release"),
        ("release.end", "no_release"),
        ("release.start", "release.start"),
    ],
)
def test_slugs(token: str, spelt: str) -> None:
    assert parse_slug(f"query-h8-b8-{token}").slug == f"query-h8-b8-{spelt}"


def test_a_mode_that_auto_means_makes_no_other_code() -> None:
    assert planned("query-h8-b8-release.wait").code == planned("query-h8-b8").code
    assert planned("query-h8-b8-scheme.folded-release.start").code == "query_folded8_release_start"
    assert planned("query-h8-b8-release.start").code == "query_rows8_release_start"
    assert planned("query-h8-b8-no_release").code == "query_rows8_no_release"


def test_late_starts_or_ends() -> None:
    assert planned("query-h8-b8-dsa-late").release == "start"
    assert planned("query-h8-b8-dsa-late-no_release").release == "end"
    with pytest.raises(
        ConfigError, match=r"release: got 'wait'; with late it is auto, start or end"
    ):
        make("query", DSA | {"late": True, "release": "wait"})


def test_a_late_query_needs_a_front_that_waits_before_it_releases() -> None:
    configs: tuple[Config, ...] = select((), None, DSA | {"late": True})
    (front,) = (each for each in configs if each.kernel == "index_front")
    assert plan(front).release == "wait"
    with pytest.raises(ConfigError, match=r"release: got 'start'; with late the index_front"):
        select((), None, DSA | {"late": True, "release": "start"})


@pytest.mark.parametrize("fields", [{"dsa": True}, {"dcp": 2}])
def test_folded_weights_need_an_fp8_query_of_one_rank(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="scheme: got 'folded'; folded needs an FP8 query"):
        make("query", {"heads": 8, "batch": 8, "scheme": "folded"} | fields)
