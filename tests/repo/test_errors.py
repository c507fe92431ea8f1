"""docs/errors.md names every error class and exit code; errors cross processes."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from kgen.codegen import errors, public

from ..helpers.places import ROOT

TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.KgenError)
}


def test_every_class_has_a_row_and_a_public_name() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(CLASSES)
    assert {name for name, place in public.PLACES.items() if place == "errors"} == {
        *CLASSES,
        "CacheWarning",
    }


@pytest.mark.parametrize("name", CLASSES)
def test_a_row_names_the_class_it_derives_from(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", TEXT, re.MULTILINE)
    base = CLASSES[name].__bases__[0]
    if base not in (errors.KgenError, Exception):
        assert f"a `{base.__name__}`:" in row


@pytest.mark.parametrize("kind", CLASSES.values())
def test_errors_cross_processes(kind: type[errors.KgenError]) -> None:
    given = ("heads", 300, "at most 128") if issubclass(kind, errors.ConfigError) else ("text",)
    back = pickle.loads(pickle.dumps(kind(*given)))
    assert type(back) is kind and str(back) == str(kind(*given))
