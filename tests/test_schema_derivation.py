"""A field added to a copy of the model appears everywhere that is derived from it."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from click.testing import CliRunner
from pydantic import Field

from kgen import cli
from kgen.codegen.cache.keys import key
from kgen.codegen.commands.base import config_params
from kgen.codegen.compiler.render import render
from kgen.codegen.plan import planner
from kgen.codegen.schema import families, select


class Grown(families.Query):
    """The query family with one field more."""

    knob: Annotated[int, Field(ge=0, le=9, description="turns something")] = 0


@pytest.fixture(autouse=True)
def grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(families.KERNELS, "query", Grown)
    planner = planner._PLANNERS[families.Query]
    monkeypatch.setitem(planner._PLANNERS, Grown, planner)


def run(*args: str) -> str:
    result = CliRunner().invoke(cli.kgen, args)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_line_option() -> None:
    for command in ("build", "plan", "bench"):
        assert "--knob 0-9" in run(command, "--help")
        assert "turns something [default: 0]" in " ".join(run(command, "--help").split())


def test_json_schema() -> None:
    knob = json.loads(run("schema"))["kernels"]["query"]["properties"]["knob"]
    assert (knob["minimum"], knob["maximum"], knob["default"]) == (0, 9, 0)


def test_docs_table() -> None:
    row = "| `--knob` | an integer from 0 to 9 | 0 | turns something |"
    assert row in run("schema", "--table").splitlines()


def test_slug() -> None:
    config = families.make("query", {"heads": 8, "batch": 64, "knob": 3})
    assert config.slug == "query-h8-b64-knob3"
    assert families.parse_slug(config.slug) == config


def test_plan() -> None:
    config = families.parse_slug("query-h8-b64-knob3")
    made = planner.plan(config)
    assert made.config == config and made.context["slug"] == config.slug
    data, *_ = json.loads(run("plan", "--heads", "8", "--batch", "64", "--knob", "3", "--json"))
    assert data["config"]["knob"] == 3 and data["slug"] == config.slug


def test_matrix() -> None:
    configs = select((), "query", {"heads": "8", "batch": "64", "knob": "0-2"})
    assert [config.slug for config in configs] == [
        "query-h8-b64",
        "query-h8-b64-knob1",
        "query-h8-b64-knob2",
    ]


def key_of(**fields: int) -> str:
    config = families.make("query", {"heads": 8, "batch": 64, **fields})
    return key(render(planner.plan(config)), "sm_90a", (), "13")


def test_cache_key() -> None:
    assert key_of() == key_of(knob=0)
    assert len({key_of(), key_of(knob=1), key_of(knob=2)}) == 3


def test_what_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(planner.NOT_BUILT, Grown, ("knob",))
    result = CliRunner().invoke(cli.kgen, ("plan", "--heads", "8", "--batch", "64", "--knob", "1"))
    assert result.exit_code == 2 and "knob: got 1; not built yet" in result.stderr


def test_no_module_repeats_a_field() -> None:
    names = {param.name for param in config_params((Grown,))}
    assert names == {"slugs", "kernel", *Grown.model_fields}
