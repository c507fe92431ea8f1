"""The value and gate kernels on a GPU: stored vectors, fresh sweeps, gates at their ends."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.codegen import api, build, schema
from kgen.codegen.reference import formats, value
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.verify import families, gpu, outcome, tolerance
from kgen.codegen.verify.expected import Expected
from kgen.codegen.verify.samples import INF, NAN, Arrays, Sample, bf16

from ..data import inputs
from ..helpers.places import DATA

pytestmark = pytest.mark.gpu

VECTORS = [name for name in inputs.names() if name.startswith("value/")]
SWEEP = {
    config.slug: config
    for heads, batch, q in product((1, 6, 8, 12, 16, 64), (1, 7, 16, 17, 64, 200), (1, 4))
    if batch % q == 0
    for config in (schema.make("value", {"heads": heads, "batch": batch, "q": q}),)
}
GATES = [f"gate-h{h}-b{b}" for h in (1, 6, 12, 64) for b in (1, 16, 17, 200)]
GATES += ["gate-h8-b24-q4", "gate-h2-b200-q8", "gate-h8-b64-no_release"]
RUNS = 50


@pytest.fixture(scope="module")
def built() -> None:
    """All kernels of the sweeps, compiled side by side."""
    configs = (*SWEEP.values(), *map(schema.parse_slug, GATES))
    results = build.build_many(configs, [nvml.default_arch()])
    assert [result.error for result in results if result.error] == []


def vector(name: str) -> tuple[Kernel, Sample, np.ndarray]:
    options, given = inputs.case(name)
    with np.load(DATA / "value.npz") as stored:
        want = stored[f"{name}/output"].reshape(options["batch"], -1)
    arrays = {key: given[key] for key in ("latent", "w_uv", "gate", "lengths")}
    return kgen.value(**options), Sample(arrays, (range(options["batch"]),), q=options["q"]), want


@pytest.mark.parametrize("name", VECTORS)
def test_stored_vector(name: str) -> None:
    kernel, whole, want = vector(name)
    half = range(len(want) // 2 // whole.q * whole.q)
    for sample in (whole, replace(whole, launches=(half,)) if half else whole):
        live = sample.live
        empty = np.repeat(sample.arrays["lengths"] <= 0, sample.q)[live]
        held = gpu.run(kernel, sample)
        expectations = (
            Expected("value", "out", (live[~empty],), want[live[~empty]], tolerance.close),
            Expected(
                "empty", "out", (live[empty],), np.zeros_like(want[live[empty]]), tolerance.exact
            ),
        )
        verdicts = outcome.check(kernel.plan, expectations, held)
        assert all(verdict.right for verdict in verdicts.values()), verdicts


@pytest.mark.parametrize("slug", [*SWEEP, *GATES])
def test_fresh_inputs(slug: str, built: None) -> None:
    outcome = gpu.verify(schema.parse_slug(slug), seed=zlib.crc32(slug.encode()))
    print(outcome.text())
    assert outcome.right, outcome.text()


def on_device(host: Arrays) -> dict[str, Any]:
    cupy = pytest.importorskip("cupy")
    return {name: cupy.asarray(array) for name, array in host.items()}


def value_inputs(heads: int, batch: int, q: int = 1) -> Arrays:
    rng = np.random.default_rng((heads, batch, q))
    return {
        "latent": bf16(rng, batch, heads, 512),
        "w_uv": bf16(rng, heads, 128, 512, scale=0.05),
        "gate": bf16(rng, batch, heads * 128, scale=4),
        "lengths": np.full(batch // q, 3, np.int32),
    }


@pytest.mark.parametrize(("heads", "batch"), [(1, 1), (6, 17), (12, 64)])
def test_views_of_w_uv_give_the_same_bits(heads: int, batch: int) -> None:
    """The transposed view, and the second half of a fused kv_b_proj, whose first half is NaN."""
    kernel, host = kgen.value(heads=heads, batch=batch), value_inputs(heads, batch)
    given = on_device(host)
    want = kernel(**given).get()
    fused = np.full((heads, 256, 512), NAN, np.uint16)
    fused[:, 128:] = host["w_uv"]
    fused_view = on_device({"w_uv": fused})["w_uv"][:, 128:]
    for w_uv in (given["w_uv"].transpose(0, 2, 1), fused_view, fused_view.transpose(0, 2, 1)):
        np.testing.assert_array_equal(kernel(**given | {"w_uv": w_uv}).get(), want)


ENDS = {"inf": INF, "-inf": INF | 0x8000, "88": 0x42B0, "-88": 0xC2B0, "0": 0, "-0": 0x8000}


@pytest.mark.parametrize("family", ["value", "gate"])
@pytest.mark.parametrize("end", ENDS)
def test_gates_at_the_ends_of_the_sigmoid(end: str, family: str) -> None:
    heads, batch = 3, 17
    host = value_inputs(heads, batch) | {"gate": np.full((batch, heads * 128), ENDS[end], "u2")}
    want = value.value(host["latent"], host["w_uv"], host["gate"], host["lengths"])
    if family == "gate":
        product = formats.from_bf16(host.pop("w_uv"))
        values = np.einsum("bhk,hvk->hbv", formats.from_bf16(host.pop("latent")), product)
        host["values"] = formats.to_bf16(values)
    made = schema.make(family, {"heads": heads, "batch": batch})
    got = api.kernel(made)(**on_device(host)).get()
    verdict = tolerance.close(got, want)
    assert verdict.right, verdict
    magnitudes = formats.from_bf16(got & 0x7FFF)
    assert (magnitudes == 0).all() if end == "-inf" else (magnitudes.max() > 0)
    if end == "-88":
        assert magnitudes.max() < 1e-36


@pytest.mark.parametrize("family", ["value", "gate"])
@pytest.mark.parametrize("bits", [NAN, INF, INF | 0x8000])
@pytest.mark.parametrize("q", [1, 4])
def test_empty_requests_are_exactly_zero(q: int, bits: int, family: str) -> None:
    heads, batch = 2, 24
    host = value_inputs(heads, batch, q)
    host["lengths"][::2] = np.resize([0, -1, -(2**31)], len(host["lengths"][::2]))
    empty = np.repeat(host["lengths"] <= 0, q)
    host["gate"][empty] = bits
    host["latent"][empty] = NAN
    if family == "gate":
        del host["w_uv"]
        host["values"] = host.pop("latent")[:, :, :128].transpose(1, 0, 2).copy()
    made = schema.make(family, {"heads": heads, "batch": batch, "q": q})
    got = api.kernel(made)(**on_device(host)).get()
    assert (got[empty] == 0).all() and (got[~empty] != 0).any(axis=1).all()


@pytest.mark.parametrize("bits", [NAN, INF])
def test_a_spoilt_row_harms_no_other(bits: int) -> None:
    heads, batch = 3, 33
    kernel, host = kgen.value(heads=heads, batch=batch), value_inputs(heads, batch)
    clean = kernel(**on_device(host)).get()
    for row in (0, 16, 32):
        latent = host["latent"].copy()
        latent[row, 1, 5] = bits
        got = kernel(**on_device(host | {"latent": latent})).get()
        same = got == clean
        assert same[np.arange(batch) != row].all()
        assert same[row, :128].all() and same[row, 256:].all() and not same[row, 128:256].all()


@pytest.mark.parametrize("slug", ["value-h8-b1", "value-h12-b64", "value-h6-b17", "gate-h6-b17"])
def test_the_same_bits_in_every_run(slug: str) -> None:
    config = schema.parse_slug(slug)
    kernel = api.kernel(config)
    sample = families.of(config.kernel).sample(config, np.random.default_rng(1))
    first, *others = (gpu.run(kernel, sample)["out"] for _ in range(RUNS))
    assert all(np.array_equal(first, other) for other in others)


def test_the_samples_of_the_sweep_are_not_all_zero() -> None:
    config = schema.Value(heads=1, batch=1)
    sample = families.of("value").sample(config, np.random.default_rng(3))
    held = gpu.run(api.kernel(config), sample)["out"][sample.live, :128]
    assert (held != 0).mean() > 0.5
