"""Every combination of the query's switches: planned, rendered, compiled, or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen import build, schema
from kgen.codegen.cache.keys import Request
from kgen.codegen.commands import text
from kgen.codegen.compiler.render import render
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import plan
from kgen.codegen.schema import Config, Query, combinations
from kgen.codegen.schema.combinations import Combination
from kgen.codegen.targets import TARGETS

HEADS, BATCHES = (6, 8, 12), (1, 2, 5, 8, 16, 64)
ARCHS = ("sm_90a", "sm_100a", "sm_103a")
ALL = tuple(combinations.combinations(Query))
LEGAL = combinations.legal(Query)
ILLEGAL = tuple(found for found in ALL if found.refusal)
SHARE = 48  # kernels that are compiled for each target


def name(found: Combination) -> str:
    return " ".join(sorted(found.flags)) or "none"


def make(found: Combination, heads: int, batch: int) -> Config:
    """What belongs to the rows scheme is asked of it where auto would take another."""
    scheme = "rows" if found.fields.get("q_b_cp_async") else "auto"
    return schema.make("query", {"heads": heads, "batch": batch, "scheme": scheme, **found.fields})


def test_every_combination_is_there() -> None:
    switches = [option for option in schema.options(Query) if option.type is bool]
    assert len({found.flags for found in ALL}) == len(ALL) == 2 ** len(switches)
    assert len(LEGAL) == 2 * (1 + 3 * 2 * 2)  # q_b_cp_async; dense, 3 of dsa; late, q_c


@pytest.mark.parametrize("found", LEGAL, ids=name)
def test_legal_ones_plan_and_render(found: Combination) -> None:
    for heads, batch, arch in product(HEADS, BATCHES, ARCHS):
        made = plan(make(found, heads, batch), arch)
        assert made.entry in render(made).text


RULES: dict[tuple[str, str], Callable[[dict[str, Any]], Any]] = {
    ("fp8", "needs dsa"): lambda f: f.get("fp8") and not f.get("dsa"),
    ("nvfp4", "needs dsa and fp8"): lambda f: (
        f.get("nvfp4") and not (f.get("dsa") and f.get("fp8"))
    ),
    ("late", "needs dsa and no dcp"): lambda f: f.get("late") and not f.get("dsa"),
    ("store_qc", "only with dsa"): lambda f: f.get("store_qc") is False and not f.get("dsa"),
    ("poll", "only with dcp"): lambda f: f.get("poll") is False,
}


@pytest.mark.parametrize("found", ILLEGAL, ids=name)
def test_illegal_ones_are_refused_with_the_rule(found: Combination) -> None:
    broken = [rule for rule, breaks in RULES.items() if breaks(found.fields)]
    with pytest.raises(ConfigError) as refused:
        make(found, 8, 8)
    said = [rule for rule in broken if rule[0] == refused.value.field]
    assert said and said[0][1] in str(refused.value)
    assert repr(found.fields[refused.value.field]) in str(refused.value)


def test_legal_ones_break_no_rule() -> None:
    broken = [name(f) for f in LEGAL if any(breaks(f.fields) for breaks in RULES.values())]
    assert broken == []


def test_cp_async_is_refused_where_the_plan_takes_another_scheme() -> None:
    for batch in BATCHES:
        config = schema.make("query", {"heads": 8, "batch": batch, "q_b_cp_async": True})
        if batch <= 8:
            assert plan(config).scheme == "rows"
        else:
            with pytest.raises(ConfigError, match=f"rows scheme; batch {batch} uses ksplit here"):
                plan(config)


def test_the_table_names_every_legal_combination() -> None:
    listing = text.schema_tables()
    alone, *_ = combinations.summaries(Query)
    assert alone in listing and alone.startswith(f"{len(LEGAL)} legal combinations")
    first, second = alone.split(": ", 1)[1].split(", each alone or with one of: ")
    bound = [set(re.findall(r"--[\w-]+", part)) for part in first.split(", ")]
    free = [set(), *(set(re.findall(r"--[\w-]+", part)) for part in second.split(", "))]
    listed = [frozenset(a | b) for a in bound for b in free]
    assert len(listed) == len(set(listed)) and set(listed) == {found.flags for found in LEGAL}


def test_every_family_has_its_sentence() -> None:
    listing = text.schema_tables()
    for model in schema.KERNELS.values():
        assert all(sentence in listing for sentence in combinations.summaries(model))


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_legal_ones_compile_without_spills(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of them, spread over all; ``benchmarks/compile_all.py`` builds every one."""
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    configs = [make(*each) for each in product(LEGAL, HEADS, BATCHES)]
    sources = {plan(config, arch).code: config for config in configs}
    assert len(sources) >= 2 * len(LEGAL)
    shared = list(sources.values())[:: max(1, len(sources) // SHARE)]
    results = build.build_many(shared, [arch])
    assert [(r.config.slug, r.error) for r in results if r.artifact is None] == []
    assert {r.config.slug: fault for r in results if (fault := overflow(r))} == {}


def overflow(result: build.Result) -> dict[str, int]:
    """What of a kernel's registers and stack went to memory."""
    assert result.artifact
    found = result.artifact.cubin.resources
    names = ("spill_stores", "spill_loads", "local_bytes")
    return {name: size for name in names if (size := getattr(found, name))}


def key(**fields: Any) -> str:
    return Request.of(schema.make("query", fields), "sm_90a").code


BASE: dict[str, Any] = {"heads": 8, "batch": 8}


def changes() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each field, a legal setting of the others, and another value for it."""
    dsa: dict[str, Any] = {"dsa": True}
    dcp: dict[str, Any] = {"dcp": 2}
    needed = {"fp8": dsa, "nvfp4": dsa | {"fp8": True}, "late": dsa, "store_qc": dsa}
    needed |= dict.fromkeys(("poll", "transport", "q_heads", "watchdog"), dcp)
    others = {
        "heads": 9,
        "batch": 7,
        "scheme": "ksplit",
        "dcp": 2,
        "transport": "unicast",
        "q_heads": 64,
        "release": "end",
    }
    for option in schema.options(Query):
        other = not option.default if option.type is bool else others.get(option.name, 9)
        yield option.name, BASE | needed.get(option.name, {}), other


@pytest.mark.parametrize(("field", "others", "value"), tuple(changes()), ids=lambda v: str(v)[:12])
def test_a_changed_field_changes_the_code_unless_it_is_launch_data(
    field: str, others: dict[str, Any], value: Any
) -> None:
    same = key(**others | {field: value}) == key(**others)
    assert same == (field in ("heads", "batch"))


def test_with_dcp_heads_are_in_the_code() -> None:
    assert key(heads=8, batch=8, dcp=2) != key(heads=9, batch=8, dcp=2)


@pytest.mark.parametrize("found", LEGAL, ids=name)
def test_a_default_written_out_changes_nothing(found: Combination) -> None:
    given = BASE | found.fields
    written = {o.name: o.default for o in schema.options(Query) if not o.required} | given
    assert len(written) == len(Query.model_fields)
    assert key(**written) == key(**given)


def test_keys_of_all_combinations_differ() -> None:
    keys = {key(**BASE | found.fields) for found in LEGAL}
    assert len(keys) == len(LEGAL)
    assert set(ARCHS) <= set(TARGETS)
