"""Matrix syntax: lists, ranges, choices and their products."""

from __future__ import annotations

import pytest

from kgen.codegen import schema
from kgen.codegen.errors import ConfigError
from kgen.codegen.schema import Config, matrix

HEADS, BATCH, SCHEME = schema.options(schema.Query)[:3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8", (8,)), ("6,8,12", (6, 8, 12)), ("1-4,32", (1, 2, 3, 4, 32)), ("8,8,7-8", (8, 7))],
)
def test_integers(text: str, expected: tuple[int, ...]) -> None:
    assert matrix.values(HEADS, text) == expected


def test_choices() -> None:
    assert matrix.values(SCHEME, "rows,ksplit") == ("rows", "ksplit")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0", "0"),
        ("129", "129"),
        ("1.5", "1.5"),
        ("x", "x"),
        ("-1", "-1"),
        ("", ""),
        ("8,", ""),
        ("1-", "1-"),
        ("1-999999999", "1-999999999"),
        ("99999999999999999999", "99999999999999999999"),
        ("٣", "٣"),
    ],
)
def test_bad_integers(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match="an integer from 1 to 128") as caught:
        matrix.values(HEADS, text)
    assert (caught.value.field, caught.value.value) == ("heads", part)


def test_reversed_range() -> None:
    with pytest.raises(ConfigError, match=r"batch: got '16-1'; a range runs upwards: 1-16"):
        matrix.values(BATCH, "16-1")


def test_bad_choice() -> None:
    with pytest.raises(ConfigError, match=r"scheme: got 'row'.*auto, "):
        matrix.values(SCHEME, "row")


def test_product() -> None:
    configs: tuple[Config, ...] = matrix.select(
        (), "query", {"heads": "6,8", "batch": "1-2", "release": False}
    )
    assert [config.slug for config in configs] == [
        "query-h6-b1-no_release",
        "query-h6-b2-no_release",
        "query-h8-b1-no_release",
        "query-h8-b2-no_release",
    ]


def test_slugs_and_options_name_each_configuration_once() -> None:
    configs: tuple[Config, ...] = matrix.select(
        ("query-h8-b1", "query-h6-b1"), "query", {"heads": "8", "batch": "1"}
    )
    assert [config.slug for config in configs] == ["query-h8-b1", "query-h6-b1"]


def test_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="batch: got 'nothing'; query requires it"):
        matrix.select((), "query", {"heads": "8"})


def test_unknown_field_is_named() -> None:
    with pytest.raises(ConfigError, match=r"lanes.*query has the fields heads, batch"):
        matrix.select((), "query", {"heads": "8", "batch": "1", "lanes": "4"})
