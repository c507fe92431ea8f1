"""What benchmarks/fuzz_cpu.py draws, and what it prints."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.emulator.executor import Emulated
from kgen.codegen.emulator.kernel import Emulation
from kgen.codegen.errors import ConfigError, EmulationError
from kgen.codegen.plan import Plan, plan

from .test_scripts import load

PATCH = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    return load("benchmarks/fuzz_cpu.py")


@pytest.fixture(scope="module")
def drawn(fuzz: ModuleType) -> list[tuple[str, Plan]]:
    return [fuzz.draw(np.random.default_rng((1, number))) for number in range(400)]


def test_every_family_and_kind_is_drawn(fuzz: ModuleType, drawn: list[tuple[str, Plan]]) -> None:
    kinds = Counter(kind for kind, _ in drawn)
    assert kinds.keys() == fuzz.KINDS.keys() and min(kinds.values()) > 5
    assert {name for kind in kinds for name in kind.removesuffix(" with dcp").split(", ")} == {
        *schema.KERNELS
    }


def test_every_value_of_a_field_is_drawn(drawn: list[tuple[str, Plan]]) -> None:
    for kernel, model in schema.KERNELS.items():
        configs = [made.config for _, made in drawn if made.config.kernel == kernel]
        for option in schema.options(model) if configs else ():
            found = {getattr(config, option.name) for config in configs}
            assert len(found) >= 2, f"{kernel}: {option.name} is always {found}"
    queries = [made for _, made in drawn if getattr(made.config, "transport", "")]
    ranked = [made for made in queries if getattr(made.config, "dcp", 0)]
    for some, schedules in ((queries, 5), (ranked, 4)):
        assert len({(made.scheme, made.k_splits) for made in some}) == schedules


def test_a_number_is_always_the_same(fuzz: ModuleType, drawn: list[tuple[str, Plan]]) -> None:
    for number in (0, 7, 399):
        assert fuzz.draw(np.random.default_rng((1, number))) == drawn[number]


def test_what_a_plan_refuses_is_drawn_again(fuzz: ModuleType, monkeypatch: PATCH) -> None:
    refused = []

    def picky(config: schema.Config, **more: object) -> Plan:
        if getattr(config, "q", 1) == 1 and config.kernel == "value":
            refused.append(config)
            raise ConfigError("q", 1, "refused here")
        return plan(config)

    monkeypatch.setattr(fuzz, "plan", picky)
    drawn = [fuzz.draw(np.random.default_rng((2, number))) for number in range(60)]
    values = [made.config for kind, made in drawn if kind == "value"]
    assert refused and values and all(config.q > 1 for config in values)


def test_a_failure_says_what_repeats_it(fuzz: ModuleType, monkeypatch: PATCH) -> None:
    def trial(made: Emulation | Emulated, seed: int) -> None:
        raise EmulationError("it deadlocks\n  again: kgen verify of another schedule")

    monkeypatch.setattr(fuzz.cpu, "emulate", lambda made: made)
    monkeypatch.setattr(fuzz.cpu, "trial", trial)
    result = fuzz.run(1, 3)
    assert result.trouble == "it deadlocks" and result.label and result.number == 3


def test_as_many_run_as_were_asked_for(
    fuzz: ModuleType, monkeypatch: PATCH, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(given: argparse.Namespace, numbers: Iterator[int]) -> list[object]:
        return [fuzz.Result(n, "query", "a", "it deadlocks" * (n == 2), 1.0) for n in numbers]

    monkeypatch.setattr(fuzz, "_results", results)
    for arguments, ran, code in ((["--count", "2"], 2, False), (["--number", "2"], 1, True)):
        monkeypatch.setattr("sys.argv", ["fuzz_cpu.py", "--seed", "9", *arguments])
        with pytest.raises(SystemExit) as ended:
            fuzz.main()
        assert ended.value.code is code
        text = capsys.readouterr().out
        assert f"seed 9: {ran} configurations\nquery: {ran}; query with dcp: 0;" in text
        assert f"{int(code)} failed" in text
