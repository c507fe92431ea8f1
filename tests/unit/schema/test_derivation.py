"""A field added to a copy of the model appears everywhere that is derived from it."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from click.testing import CliRunner
from pydantic import Field

from kgen import cli
from kgen.codegen import schema
from kgen.codegen.cache.keys import Request
from kgen.codegen.plan import plan
from kgen.codegen.schema import Config, select, stub


class Grown(schema.Query):
    """The query family with one field more."""

    knob: Annotated[int, Field(ge=0, le=9, description="turns something")] = 0


@pytest.fixture(autouse=True)
def grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schema.KERNELS, "query", Grown)


def run(*args: str) -> str:
    result = CliRunner().invoke(cli.kgen, args)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_line_option() -> None:
    for command in ("build", "plan", "bench"):
        assert "--knob 0-9" in run(command, "--help")
        assert "turns something [default: 0]" in " ".join(run(command, "--help").split())


def test_json_schema() -> None:
    tables = json.loads(run("schema"))["properties"]["query"]
    knob = tables["items"]["properties"]["knob"]
    number = knob["anyOf"][0]["anyOf"][0]
    assert (number["minimum"], number["maximum"], knob["default"]) == (0, 9, 0)


def test_docs_table() -> None:
    row = "| `--knob` | an integer from 0 to 9 | 0 | turns something |"
    assert row in run("schema", "--table").splitlines()


def test_public_calls() -> None:
    assert "    knob: int = 0,\n" in stub.text()


def test_slug() -> None:
    config = schema.make("query", {"heads": 8, "batch": 64, "knob": 3})
    assert config.slug == "query-h8-b64-knob3"
    assert schema.parse_slug(config.slug) == config


def test_plan() -> None:
    config = schema.parse_slug("query-h8-b64-knob3")
    made = plan(config)
    assert made.config == config and made.code.endswith("_knob3")
    data, *_ = json.loads(run("plan", "--heads", "8", "--batch", "64", "--knob", "3", "--json"))
    assert data["config"]["knob"] == 3 and data["slug"] == config.slug


def test_matrix() -> None:
    configs: tuple[Config, ...] = select((), "query", {"heads": "8", "batch": "64", "knob": "0-2"})
    assert [config.slug for config in configs] == [
        "query-h8-b64",
        "query-h8-b64-knob1",
        "query-h8-b64-knob2",
    ]


def key_of(**fields: int) -> str:
    config = schema.make("query", {"heads": 8, "batch": 64, **fields})
    return Request.of(config, "sm_90a").code


def test_cache_key() -> None:
    assert key_of() == key_of(knob=0)
    assert len({key_of(), key_of(knob=1), key_of(knob=2)}) == 3
