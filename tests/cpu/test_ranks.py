"""Kernels of several ranks, run and judged on the CPU: single launches, and layers step by step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kgen import cli
from kgen.codegen import schema
from kgen.codegen.compiler.render import render
from kgen.codegen.emulator import executor
from kgen.codegen.errors import EmulationError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.verify import cpu, families, ranks, shards
from kgen.codegen.verify.judge import Verdict
from kgen.codegen.verify.samples import Sample

on_cpu = pytest.mark.cpu

PATCH = pytest.MonkeyPatch
SLUGS = {
    "query-h1-b3-dcp2-transport.unicast": {"query", "cache rows", "elsewhere", "mailboxes"},
    "query-h1-b9-dcp2-dsa-no_poll-q_heads6": {
        *("query", "cache rows", "q_c", "elsewhere", "mailboxes"),
    },
    "query_wait-h2-b3-dcp2-q_heads5-bf16": {"mailboxes"},
    "dcp_value-h2-b6-q3-dcp2": {"value", "empty requests", "elsewhere", "mailboxes"},
}


def right(verdicts: dict[str, Verdict]) -> bool:
    return all(verdict.right for verdict in verdicts.values())


@on_cpu
@pytest.mark.parametrize("slug", SLUGS)
def test_fresh_inputs_on_every_rank(slug: str) -> None:
    outcome = cpu.verify(schema.parse_slug(slug), seed=5)
    assert outcome.right, outcome.text()
    assert outcome.verdicts.keys() == SLUGS[slug] and outcome.launches >= 4


def test_every_family_has_a_check() -> None:
    ranked = {kernel for kernel, model in schema.KERNELS.items() if "dcp" in model.model_fields}
    for kernel in schema.KERNELS:
        found = vars(families.of(kernel)).keys()
        assert {"sample", "expect"} <= found or "ranks" in found, kernel
        assert ("ranks" in found) == (kernel in ranked), kernel
    assert {slug.partition("-")[0] for slug in SLUGS} == ranked


@on_cpu
def test_the_command() -> None:
    command = ("verify", "dcp_value-h1-b2-dcp2", "--cpu", "--seed", "3", "--seeds", "1", "--json")
    done = CliRunner().invoke(cli.kgen, command)
    (data,) = json.loads(done.stdout)
    assert done.exit_code == 0 and data["right"] and "mailboxes" in data["outputs"]


def edited(slug: str, old: str, new: str) -> executor.Emulated:
    made = plan(schema.parse_slug(slug))
    source = render(made)
    assert old in source.text
    text = source.text.replace(old, new, 1)
    return executor.emulate(made, source=replace(source, text=text))


@on_cpu
def test_a_report_has_what_repeats_it() -> None:
    slug = "query-h1-b3-dcp2-transport.unicast"
    with pytest.raises(EmulationError, match="deadlock") as caught:
        cpu.trial(edited(slug, "rank < 2; ++rank", "rank < 1; ++rank"), 6)
    assert str(caught.value).endswith(f"again: kgen verify {slug} --cpu --seed 6 --seeds 1")


@on_cpu
def test_a_head_in_the_place_of_another_is_wrong() -> None:
    made = edited("dcp_value-h2-b3-dcp2", "head / kNumHeads;", "head / kNumHeads ^ 1;")
    verdicts = cpu.trial(made, 4).verdicts
    assert not verdicts["value"].right and verdicts["mailboxes"].right


@on_cpu
def test_a_mailbox_that_is_not_refilled_is_wrong() -> None:
    old = "store_global16(box + row + i % kPieces * 16, empty);"
    verdicts = cpu.trial(edited("dcp_value-h1-b2-dcp2", old, ""), 1).verdicts
    assert not verdicts["mailboxes"].right and verdicts["value"].right


def test_ranks_share_rows_and_have_heads_of_their_own() -> None:
    parts = shards.split(schema.Value(heads=2, batch=3), 3, np.random.default_rng(1), 5)
    wide = schema.Value(heads=6, batch=3)
    whole: Sample = families.of("value").sample(wide, np.random.default_rng(1), 5)
    for part in parts:
        assert part.launches == whole.launches
        np.testing.assert_array_equal(part.arrays["lengths"], whole.arrays["lengths"])
    for name, axis in (("w_uv", 0), ("gate", 1)):
        found = np.concatenate([part.view(name) for part in parts], axis)
        np.testing.assert_array_equal(found, whole.view(name))


def query(dcp: int, transport: str, **fields: Any) -> schema.Query:
    shape = {"heads": 1, "batch": 3, "dcp": dcp, "transport": transport}
    made = schema.make("query", shape | fields)
    assert isinstance(made, schema.Query)
    return made


DSA = {"dsa": True, "q_heads": 12}
LAYERS = (
    query(2, "unicast", poll=False, **DSA),
    query(2, "multicast"),
    query(4, "unicast"),
    query(4, "multicast", **DSA),
)


@on_cpu
@pytest.mark.parametrize("config", LAYERS, ids=lambda config: str(config.slug))
def test_layers(config: schema.Query) -> None:
    """A part of what benchmarks/ranks_cpu.py runs."""
    verdicts = ranks.layers(config, 4, seed=config.dcp)
    assert right(verdicts), verdicts
    assert {"query", "value", "elsewhere", "mailboxes"} <= verdicts.keys()


@on_cpu
@pytest.mark.parametrize(
    ("kernel", "old", "new", "message"),
    [
        ("dcp_value", "store_global16(box + row + i % kPieces * 16, empty);", "", "is refilled"),
        ("query", "rank < 2; ++rank", "rank < 1; ++rank", "deadlock"),
    ],
)
def test_layers_of_a_wrong_kernel(
    monkeypatch: PATCH, kernel: str, old: str, new: str, message: str
) -> None:
    """What nobody refills is found where its parity's turn comes again."""

    def emulate(made: Plan) -> executor.Emulated:
        slug = made.config.slug
        return edited(slug, old, new) if made.config.kernel == kernel else executor.emulate(made)

    monkeypatch.setattr(ranks, "emulate", emulate)
    with pytest.raises(EmulationError, match=message):
        ranks.layers(query(2, "unicast"), 3, seed=0)
