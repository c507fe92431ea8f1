"""The CPU run reports bugs: single edits of rendered kernels, one at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import pytest

from kgen.codegen import schema
from kgen.codegen.compiler.render import Source, render
from kgen.codegen.emulator.kernel import Emulation
from kgen.codegen.errors import EmulationError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.verify import cpu

from ..helpers.mutations import KERNELS, MUTATIONS, Mutation

SEEDS = 4  # at most, from 0: late and eager completion in turn

# What is not reported with a line, and why: docs/emulation.md lists these.
MISSED: dict[str, str] = {
    "a tile without rows returns at once": "reported, but the CTA does nothing that has a line",
}

Lines = set[tuple[str, int]]


@dataclass(frozen=True)
class Found:
    """How a run ended: the report, or which outputs were wrong, and the seed."""

    report: str = ""
    wrong: str = ""
    seed: int = 0

    @property
    def lines(self) -> Lines:
        """The lines that the report names."""
        named = re.findall(r"([\w./-]+\.cuh?):(\d+)", self.report)
        return {(file, int(line)) for file, line in named}


@cache
def original(kernel: str) -> tuple[Plan, Source]:
    family, fields, schedule = KERNELS[kernel]
    made = plan(schema.make(family, fields), "sm_90a", schedule)
    return made, render(made)


def place(text: str, mutation: Mutation) -> int:
    """Where the edit starts."""
    at = -1
    for _ in range(mutation.nth + 1):
        at = text.index(mutation.old, at + 1)
    return at


def mutated(mutation: Mutation) -> tuple[Source, Lines]:
    """The edited source, and the lines that a report may point at."""
    _, source = original(mutation.kernel)
    at = place(source.text, mutation)
    text = source.text[:at] + mutation.new + source.text[at + len(mutation.old) :]
    first = text.count("\n", 0, at) + 1
    lines = {(source.name, first + i) for i in range(max(mutation.new.count("\n"), 1) + 1)}
    for name, body in ((source.name, text), *source.headers):
        for number, line in enumerate(body.splitlines(), 1):
            if any(partner in line for partner in mutation.partners):
                lines.add((name, number))
    return replace(source, text=text), lines


def run(made: Emulation) -> Found:
    """The first seed's trouble."""
    for seed in range(SEEDS):
        try:
            verdicts = cpu.trial(made, seed).verdicts
        except EmulationError as error:
            return Found(report=str(error), seed=seed)
        wrong = [name for name, verdict in verdicts.items() if not verdict.right]
        if wrong:
            return Found(wrong=", ".join(wrong), seed=seed)
    return Found()


@pytest.mark.cpu
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_reported(mutation: Mutation) -> None:
    made, _ = original(mutation.kernel)
    source, lines = mutated(mutation)
    found = run(Emulation(made, source))
    pointed = bool(found.lines & lines)
    if mutation.name in MISSED:
        assert not pointed, f"no longer missed: {found}"
        return
    assert pointed, f"{found.report or found.wrong or 'nothing found'}\nmay point at {lines}"


def test_nine_in_ten_are_reported() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(names) == len(set(names)) >= 30
    assert MISSED.keys() <= set(names)
    assert len(MISSED) <= len(MUTATIONS) // 10
