"""`kgen.emulate` and `kgen verify --cpu`: arguments, reports, and no CUDA library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import kgen
from kgen import cli
from kgen.codegen import schema
from kgen.codegen.compiler.render import render
from kgen.codegen.emulator import kernel
from kgen.codegen.emulator.kernel import Emulation, emulate
from kgen.codegen.errors import ArgumentError, ConfigError, EmulationError
from kgen.codegen.verify import cpu, families, gpu, samples

pytestmark = pytest.mark.cpu

SLUG = "query_norm-b3"


@pytest.fixture(scope="module")
def norm() -> Emulation:
    return kgen.emulate(SLUG)


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"qkv": samples.bf16(rng, 3, 2112), "w_qa": samples.bf16(rng, 1536, mean=1)}


@pytest.mark.parametrize(
    ("kernel", "fields"),
    [(SLUG, {}), ("query_norm", {"batch": 3}), (schema.parse_slug(SLUG), {})],
    ids=["slug", "fields", "config"],
)
def test_a_kernel_is_named_in_three_ways(kernel: Any, fields: dict[str, Any]) -> None:
    assert emulate(kernel, **fields).config.slug == SLUG


def test_fields_beside_a_whole_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"batch: got 4; {SLUG} names all fields already"):
        emulate(SLUG, batch=4)


def test_a_rank_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="dcp: got 2; one rank alone would wait"):
        emulate("query", heads=1, batch=1, dcp=2)


def test_outputs_are_made_and_returned(norm: Emulation) -> None:
    given = inputs()
    out = norm(given.pop("qkv"), **given, seed=1)
    assert (out.shape, out.dtype) == ((3, 1536), np.uint16)
    into = np.full((3, 1600), 0xEEEE, np.uint16)
    assert norm(**inputs(), q_c=into[:, :1536], seed=2, lazy=False).base is into
    np.testing.assert_array_equal(into[:, :1536], out)
    assert (into[:, 1536:] == 0xEEEE).all()


def test_ml_dtypes_are_the_same_bits(norm: Emulation) -> None:
    given = {name: array.view(ml_dtypes.bfloat16) for name, array in inputs().items()}
    np.testing.assert_array_equal(norm(**given), norm(**inputs()))


def test_fewer_rows(norm: Emulation) -> None:
    out = norm(**inputs(), num_rows=1)
    np.testing.assert_array_equal(out, norm(**inputs())[:1])
    into = kernel.poisoned((3, 1536), 2)
    norm(**inputs(), q_c=into, num_rows=0)
    assert (into == 0xFFFF).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"w_qa": None}, "w_qa: got nothing; allowed is an array each"),
        ({"w_qa": np.zeros(1536, np.float32)}, "w_qa: got dtype float32; allowed is bfloat16 or"),
        ({"w_qa": np.zeros(1535, np.uint16)}, r"w_qa: got shape \(1535,\); allowed is \(1536,\)"),
        ({"w_qa": [1.0]}, r"w_qa: got list \[1.0\]; allowed is a NumPy array of bfloat16 or"),
        ({"weight": 1}, "weight: unknown argument"),
        ({"num_rows": 4}, r"num_rows: got 4; allowed is an integer in 0\.\.3"),
        ({"q_c": np.zeros((1, 1536), np.uint16)}, "q_c: got shape .* which holds 1 rows"),
        ({"qkv": np.zeros((3, 2113), np.uint16)}, r"qkv: got strides \(2113, 1\)"),
        ({"q_c": np.broadcast_to(np.uint16(0), (3, 1536))}, "q_c: got an array that is read only"),
    ],
)
def test_wrong_arguments(norm: Emulation, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        norm(**inputs() | changed)


def test_a_report_has_lines_a_seed_and_what_repeats_it(norm: Emulation) -> None:
    source = render(norm.plan)
    broken = replace(source, text=source.text.replace("__syncthreads();", ";"))
    with pytest.raises(EmulationError) as caught:
        cpu.trial(Emulation(norm.plan, broken), 6)
    report = str(caught.value)
    line = source.text[: source.text.index("sum += sums[w]")].count("\n") + 1
    assert report.startswith(f"{SLUG}: CTA (")
    assert f"at: {norm.plan.code}.cu:{line} in " in report
    assert report.endswith(f"seed 6\n  again: kgen verify {SLUG} --cpu --seed 6 --seeds 1")


def test_a_deadlock_says_who_waits_for_what_and_where() -> None:
    made = emulate("value-h1-b1")
    source = render(made.plan)
    expected = "kOutputs * 2 * kLatentColumns"
    text = source.text.replace(expected, f"{expected} + 64")
    line = text[: text.index("mbarrier_wait(barrier, 0)")].count("\n") + 1
    with pytest.raises(EmulationError, match="deadlock:") as caught:
        cpu.trial(Emulation(made.plan, replace(source, text=text)), 0)
    report = str(caught.value)
    assert "waits for the mbarrier at" in report
    lacks = "which lacks 0 arrivals and 64 bytes, as do 127 others"
    assert f"{lacks}: {made.plan.code}.cu:{line}" in report


def test_verify_is_repeated_by_its_seed() -> None:
    config = schema.parse_slug("gate-h1-b3")
    first, again = (cpu.verify(config, seed=4) for _ in range(2))
    assert first == again and first.right
    held = [cpu.run(emulate(config), _sample(config), seed) for seed in (4, 5)]
    np.testing.assert_array_equal(held[0]["out"], held[1]["out"])


def _sample(config: Any) -> samples.Sample:
    made: samples.Sample = families.of("gate").sample(config, np.random.default_rng(3), 8)
    return made


def test_the_command() -> None:
    command = ("verify", SLUG, "--cpu", "--seed", "8", "--seeds", "3", "--json")
    done = CliRunner().invoke(cli.kgen, command)
    (data,) = json.loads(done.stdout)
    assert done.exit_code == 0 and data["right"] and data["seed"] == 8
    assert data["arch"] == "sm_90a on the CPU" and data["outputs"].keys() == {"q_c", "elsewhere"}
    assert data["launches"] >= 6


def test_a_failed_run_says_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(made: Emulation, sample: samples.Sample, seed: int) -> gpu.Arrays:
        raise EmulationError("it deadlocks")

    monkeypatch.setattr(cpu, "run", broken)
    with pytest.raises(EmulationError, match="it deadlocks\n  again: kgen verify"):
        cpu.verify(schema.parse_slug(SLUG), seed=3)


NO_CUDA = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "cupy", "cupyx", "pynvml", "torch"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import kgen.cli
sys.argv = ["kgen", "verify", "gate-h1-b1", "--cpu", "--arch", "sm_90a"]
kgen.cli.main()
"""


def test_no_cuda_library_is_needed() -> None:
    command = (sys.executable, "-c", NO_CUDA)
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "right" in done.stdout
