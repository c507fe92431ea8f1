"""Hit or miss, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kgen.codegen.build import build
from kgen.codegen.cache import keys
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.inspection.explain import explain
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import Query, QueryNorm

from ...helpers.cubins import compiled
from ...helpers.entries import flip

CONFIG = QueryNorm(batch=8)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(nvrtc, "compile", compiled)
    return Cache(tmp_path / "cache")


def differing(cache: Cache, arch: str = "sm_90a") -> dict[str, tuple[str, str]]:
    found = explain(CONFIG, arch, cache)
    assert found.hit is None and found.data()["result"] == "miss"
    return {each.field: (each.expected, each.found) for each in found.differences}


def test_a_hit_has_nothing_to_explain(cache: Cache) -> None:
    path = build(CONFIG, cache=cache).path
    found = explain(CONFIG, "sm_90a", cache)
    assert found.hit == str(path) and found.differences == () and found.nearest is None
    assert found.text().startswith("query_norm-b8 for sm_90a: hit\n")


def test_a_miss_without_neighbours(cache: Cache) -> None:
    found = explain(CONFIG, "sm_90a", cache)
    assert found.data()["nearest"] is None and not cache.root.exists()
    assert found.text() == f"query_norm-b8 for sm_90a: miss\n  key      {found.key}"


def test_another_compiler(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(CONFIG, cache=cache)
    here = nvrtc.nvrtc_build()
    monkeypatch.setattr(nvrtc, "nvrtc_build", lambda: "13.9+new")
    assert differing(cache) == {"nvrtc": ("13.9+new", here)}


def test_another_target_and_its_option(cache: Cache) -> None:
    build(CONFIG, "sm_100a", cache=cache)
    found = differing(cache)
    assert found.pop("arch") == ("sm_90a", "sm_100a")
    assert found.pop("options") == (
        "--gpu-architecture=sm_90a",
        "--gpu-architecture=sm_100a",
    )
    assert set(found) <= {"text"}


def test_an_edited_header_and_one_more(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(CONFIG, cache=cache)

    def edited(plan: Plan) -> Source:
        source = render(plan)
        (name, text), *rest = source.headers
        return dataclasses.replace(source, headers=((name, text + " "), *rest, ("z.cuh", "")))

    monkeypatch.setattr(keys, "render", edited)
    found = differing(cache)
    first, _ = render(plan(CONFIG)).headers[0]
    assert set(found) == {f"header {first}", "header z.cuh"}
    assert found["header z.cuh"][1] == "none"


def test_options_in_another_order_are_shown_whole(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(CONFIG, cache=cache)
    kept = nvrtc.options
    monkeypatch.setattr(nvrtc, "options", lambda arch: tuple(reversed(kept(arch))))
    (found,) = differing(cache).values()
    assert found == (" ".join(reversed(kept("sm_90a"))), " ".join(kept("sm_90a")))


def test_the_same_code_is_nearer_than_another(cache: Cache) -> None:
    build(QueryNorm(batch=8, release="end"), cache=cache)
    assert set(differing(cache)) == {"code", "text"}
    build(CONFIG, "sm_100a", cache=cache)
    assert "arch" in differing(cache)
    build(Query(heads=8, batch=8), cache=cache)
    found = explain(CONFIG, "sm_90a", cache)
    assert found.nearest and found.nearest.meta["name"] == "query_norm_row1_release_start"
    assert "nearest  query_norm_row1_release_start for sm_100a" in found.text()


def test_a_damaged_entry_is_a_miss_that_says_so_and_is_left_alone(cache: Cache) -> None:
    path = build(CONFIG, cache=cache).path
    assert path
    flip(path)
    found = explain(CONFIG, "sm_90a", cache)
    assert found.hit is None and "checksum: expected" in found.text()
    assert len(found.data()["problems"]) == 1
    assert [each.name for each in cache.root.iterdir()] == [found.key]


def test_read_only_roots_are_explained_too(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(CONFIG, cache=Cache(tmp_path / "far")).path
    monkeypatch.setenv("KGEN_CACHE_PATH", str(tmp_path / "far"))
    assert explain(CONFIG, "sm_90a", cache).hit == str(path)
