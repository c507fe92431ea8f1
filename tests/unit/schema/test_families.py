"""The configuration models: strict types, bounds, rules and the slug."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from kgen.codegen import schema
from kgen.codegen.errors import ConfigError
from kgen.codegen.schema import Config, Query, make, options, parse_slug

from ...helpers.configs import legal

BASE = {"heads": 8, "batch": 64}
OPTIONS = [(kernel, option) for kernel, m in schema.KERNELS.items() for option in options(m)]
IDS = [f"{kernel}-{option.name}" for kernel, option in OPTIONS]


def required(kernel: str) -> dict[str, Any]:
    return {o.name: o.low for o in options(schema.KERNELS[kernel]) if o.required}


def wrong_values(option: schema.Option) -> tuple[Any, ...]:
    """Values near to right ones that a strict field refuses."""
    if option.choices:
        return (option.choices[0].upper(), option.choices[0].encode(), "", 0, None, 1.0)
    if option.type is bool:
        return (0, 1, "true", "", None, 1.0)
    assert option.low is not None and option.high is not None
    return (True, "8", 8.0, 1.5, None, option.low - 1, option.high + 1)


@pytest.mark.parametrize(("kernel", "option"), OPTIONS, ids=IDS)
def test_a_wrong_value_names_field_value_and_what_is_allowed(
    kernel: str, option: schema.Option
) -> None:
    for value in wrong_values(option):
        with pytest.raises(ConfigError) as caught:
            make(kernel, required(kernel) | {option.name: value})
        assert str(caught.value) == f"{option.name}: got {value!r}; allowed is {option.allowed}"


@pytest.mark.parametrize(("kernel", "option"), OPTIONS, ids=IDS)
def test_every_field_has_bounds_or_choices_and_a_meaning(
    kernel: str, option: schema.Option
) -> None:
    assert option.doc
    assert option.choices or option.type is bool or None not in (option.low, option.high)


@pytest.mark.parametrize("field", ["heads", "batch"])
def test_the_bounds_are_allowed(field: str) -> None:
    high = {"heads": 128, "batch": 256}[field]
    for value in (1, high):
        assert getattr(make("query", BASE | {field: value}), field) == value


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="batch: got 'nothing'; query requires it: an integer"):
        make("query", {"heads": 8})


def test_an_unknown_field_or_family_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"head: got 8; did you mean heads\? query has .* heads, "
    ):
        make("query", BASE | {"head": 8})
    with pytest.raises(ConfigError, match=r"kernel: got 'queri'; allowed are query"):
        make("queri", BASE)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"dcp": 1}, "dcp: got 1; dcp is 0 (off) or 2..64"),
    ({"fp8": True}, "fp8: got True; fp8 needs dsa (dense is FP8 always)"),
    ({"nvfp4": True}, "nvfp4: got True; nvfp4 needs dsa and fp8"),
    ({"nvfp4": True, "dsa": True}, "nvfp4: got True; nvfp4 needs dsa and fp8"),
    ({"late": True}, "late: got True; late needs dsa and no dcp"),
    ({"late": True, "dsa": True, "dcp": 2}, "late: got True; late needs dsa and no dcp"),
    ({"store_qc": False}, "store_qc: got False; store_qc has a meaning only with dsa"),
    ({"watchdog": 5}, "watchdog: got 5; watchdog needs dcp and poll"),
    ({"poll": False}, "poll: got False; poll has a meaning only with dcp"),
    ({"transport": "unicast"}, "transport: got 'unicast'; transport has a meaning only with dcp"),
    ({"q_heads": 64}, "q_heads: got 64; q_heads has a meaning only with dcp"),
    ({"dcp": 2, "q_heads": 15}, "q_heads: got 15; q_heads is 0 or at least dcp*heads, here 16"),
    (
        {"late": True, "dsa": True, "release": "wait"},
        "release: got 'wait'; with late it is auto, start or end: there is no wait at the kernel's"
        " start",
    ),
    (
        {"scheme": "folded", "dsa": True},
        "scheme: got 'folded'; folded needs an FP8 query (dense, or dsa with fp8) and no dcp",
    ),
    (
        {"q_b_cp_async": True, "scheme": "ksplit"},
        "q_b_cp_async: got True; q_b_cp_async belongs to the rows scheme",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BROKEN)
def test_a_broken_rule_is_told_in_words(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make("query", BASE | fields)
    assert str(caught.value) == message


def test_every_rule_is_broken_above() -> None:
    told = {message.partition("; ")[2].partition(", here")[0] for _, message in BROKEN}
    assert told == {rule.text for rule in Query.rules}


@pytest.mark.parametrize(
    "fields",
    [
        {"dcp": 2, "q_heads": 16},
        {"dcp": 64, "poll": False, "transport": "unicast"},
        {"dsa": True, "late": True, "store_qc": False},
        {"dsa": True, "fp8": True, "nvfp4": True},
        {"q_b_cp_async": True, "scheme": "rows"},
        {"release": "end"},
    ],
)
def test_what_the_rules_allow(fields: dict[str, Any]) -> None:
    assert make("query", BASE | fields).changed() == BASE | fields


@given(legal())
def test_a_slug_reads_back(config: Config) -> None:
    assert parse_slug(config.slug) == config


@given(legal())
def test_defaults_written_out_change_nothing(config: Config) -> None:
    again = make(config.kernel, config.changed())
    assert (again, again.slug) == (config, config.slug)
    assert make(config.kernel, config.model_dump()) == config


def test_slugs_as_people_write_them() -> None:
    config = parse_slug("query-h8-b64-scheme.rows-dcp2-dsa-no_release-q_heads64")
    assert config == Query(
        heads=8, batch=64, scheme="rows", dcp=2, dsa=True, release="end", q_heads=64
    )
    assert parse_slug("query-b64-h8").slug == "query-h8-b64"


@pytest.mark.parametrize(
    ("slug", "message"),
    [
        ("query-h8-b64-x", r"slug: got 'query-h8-b64-x'; 'x' is none of its parts: h, b, scheme"),
        ("query-h8-b64-", r"'' is none of its parts"),
        ("query-h-b64", r"'h' is none of its parts"),
        ("query-h8", r"batch: got 'nothing'"),
        ("query-h0-b1", r"heads: got 0; allowed is an integer from 1 to 128"),
        ("query-h8-b64-scheme.row", r"scheme: got 'row'; allowed is one of auto, "),
        ("query-h8-b64-fp8", r"fp8: got True; fp8 needs dsa"),
        ("quary-h8-b64", r"kernel: got 'quary'"),
    ],
)
def test_a_bad_slug_is_told_why(slug: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_slug(slug)


def test_a_configuration_is_frozen_and_hashable() -> None:
    config = Query(heads=8, batch=64)
    with pytest.raises(ValidationError):
        config.heads = 9
    assert {config: 1}[Query(heads=8, batch=64)] == 1


def test_json_schema_has_every_field_bound_and_rule() -> None:
    document = schema.json_schema()["properties"]
    assert set(document) == {"slugs", *schema.KERNELS}
    for kernel, model in schema.KERNELS.items():
        table = document[kernel]["items"]
        assert list(table["properties"]) == [option.name for option in options(model)]
        assert all(rule.text in table["description"] for rule in model.rules)
        assert table["additionalProperties"] is False
    heads = document["query"]["items"]["properties"]["heads"]["anyOf"][0]["anyOf"][0]
    assert (heads["minimum"], heads["maximum"]) == (1, 128)
