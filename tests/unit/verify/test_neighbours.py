"""Outputs that are right as those of a neighbour: as far as is allowed, and one step further."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.compiler.render import TEMPLATES
from kgen.codegen.plan import plan
from kgen.codegen.reference import index_front, query, value
from kgen.codegen.reference.formats import next_f32, to_bf16
from kgen.codegen.verify import families, samples, tolerance
from kgen.codegen.verify.expected import Expected, neighbours, verdicts
from kgen.codegen.verify.families.query import TENSOR_SUMS, TENSOR_ULPS, ULPS
from kgen.codegen.verify.judge import Judged, Verdict, together
from kgen.codegen.verify.samples import Sample

ONE = 0x3F80  # as BF16 bits


@dataclass(frozen=True)
class Edge:
    """A reciprocal RMS ``rr`` below which a row is stored otherwise: every ``every``-th of its
    columns is plus or minus ``size``, the others are zero."""

    fields: dict[str, bool]
    size: float
    every: int
    rr: float
    k_scale: float = 1.0

    def row(self, columns: int) -> np.ndarray:
        """The row, as BF16 bits."""
        x = np.zeros(columns)
        x[:: self.every] = self.size * np.where(np.arange(columns)[:: self.every] % 3, 1, -1)
        return to_bf16(x)

    def eps(self, off: int) -> float:
        """What moves the exact reciprocal RMS to ``off`` ulp from the edge."""
        mean = self.size**2 / self.every
        wanted = step(self.rr, off)
        near = np.float64(np.float32(wanted**-2 - mean))
        for n in range(-8, 9):
            eps = next_f32(np.array(near), n)
            if next_f32(1 / np.sqrt(mean + eps), 0) == wanted:
                return float(eps)
        raise AssertionError(f"no eps gives {wanted}")


def step(number: float, ulps: int) -> float:
    return float(next_f32(np.array(number), ulps))


# BF16 rounds to 1 from 1 - 2**-9 on. It rounds to more than 1.75, 448 powers of two, above
# 1.75 + 2**-8; to more than 6.375 (6 times the middle of two E4M3 scales) above 6.375 + 2**-6.
BELOW_ONE = 1 - 2**-9
EDGES = {
    "dense": Edge({}, 1, 2, BELOW_ONE, 1.064),
    "dsa_fp8": Edge({"dsa": True, "fp8": True}, 1, 2, BELOW_ONE, 1 / 1.064),
    "dsa": Edge({"dsa": True}, 1, 4, step(1.75 + 2**-8, 1)),
    "nvfp4": Edge({"dsa": True, "fp8": True, "nvfp4": True}, 4, 64, step((6.375 + 2**-6) / 4, 1)),
}


def judged(made: Any, sample: Sample, name: str, rows: np.ndarray) -> Verdict:
    """The verdict on ``rows`` as the live rows of an output."""
    (wanted,) = (e for e in families.of(made.config.kernel).expect(made, sample) if e.name == name)
    wants = tuple(map(wanted.values, wanted.wants))
    (found,) = together([Judged(wanted.rule, wanted.values(rows), wants)])
    return found


def kv_case(edge: Edge, off: int) -> tuple[Any, Sample, Callable[[int], np.ndarray]]:
    """A plan, a sample whose exact reciprocal RMS is ``off`` ulp from the edge, and the KV rows
    that one so many ulp further gives."""
    config = schema.make("query", {"heads": 1, "batch": 2, **edge.fields})
    sample = families.of("query").sample(config, np.random.default_rng(1), 4)
    qkv, eps = sample.arrays["qkv"].copy(), edge.eps(off)
    qkv[sample.live, 1536:2048] = edge.row(512)
    given = {"w_kva": np.full(512, ONE, np.uint16), "qkv": qkv}
    scales = dict.fromkeys(("k_scale", "k_scale_inv"), np.array([edge.k_scale], np.float32))
    sample = replace(sample, arrays=sample.arrays | given | scales, scalars={"eps": eps})
    taken = sample.live[sample.arrays["slots"][sample.live] >= 0]
    line: dict[str, Any] = {"w_kva": given["w_kva"], "k_scale": edge.k_scale, "eps": eps}
    return plan(config), sample, lambda n: query.kv_rows(qkv[taken], **line, **edge.fields, ulps=n)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("form", EDGES)
def test_a_kv_row_is_of_a_reciprocal_rms_within_two_ulp(form: str, way: int) -> None:
    for off in range(1, ULPS + 2):
        made, sample, rows = kv_case(EDGES[form], -off if way > 0 else off - 1)
        got = rows(way * off)
        assert (got != rows(0)).any() and (got == rows(2 * way * off)).all()
        verdict = judged(made, sample, "cache rows", got)
        assert verdict.right is (off <= ULPS)
        assert verdict.farthest == (off if off <= ULPS else 0)


@pytest.mark.parametrize("form", EDGES)
def test_a_kv_row_is_of_one_reciprocal_rms(form: str) -> None:
    """Of two that are right each, half of the row: wrong."""
    made, sample, rows = kv_case(EDGES[form], -1)
    low, high = rows(0), rows(1)
    for each in (low, high):
        assert judged(made, sample, "cache rows", each).right
    apart = np.flatnonzero((low != high).any(axis=0))
    middle = apart[len(apart) // 2]
    mixed = np.concatenate((low[:, :middle], high[:, middle:]), axis=-1)
    assert not judged(made, sample, "cache rows", mixed).right


def q_c_case(kernel: str, off: int, **fields: Any) -> tuple[Any, Sample, Callable[[int], Any]]:
    """The same of q_c."""
    config = schema.make(kernel, {"batch": 2} | fields)
    sample = families.of(kernel).sample(config, np.random.default_rng(1), 4)
    edge, qkv = EDGES["dense"], sample.arrays["qkv"].copy()
    eps, w_qa = edge.eps(off), np.full(1536, ONE, np.uint16)
    qkv[sample.live, :1536] = edge.row(1536)
    sample = replace(
        sample, arrays=sample.arrays | {"qkv": qkv, "w_qa": w_qa}, scalars={"eps": eps}
    )
    rows = qkv[sample.live]
    return plan(config), sample, lambda n: query.query_norm(rows, w_qa=w_qa, eps=eps, ulps=n)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize(
    ("kernel", "fields", "limit"),
    [
        ("query", {"heads": 1, "dsa": True, "scheme": "rows"}, TENSOR_ULPS),
        ("query", {"heads": 1, "dsa": True, "scheme": "ksplit"}, TENSOR_ULPS),
        ("query", {"heads": 1, "dsa": True, "scheme": "ksplit", "batch": 40}, ULPS),
        ("query_norm", {}, ULPS),
    ],
    ids=["rows", "ksplit_by_2", "ksplit_by_8", "query_norm"],
)
def test_a_row_of_q_c_is_of_a_reciprocal_rms_within_its_ulps(
    kernel: str, fields: dict[str, Any], limit: int, way: int
) -> None:
    for off in range(1, limit + 2):
        made, sample, rows = q_c_case(kernel, -off if way > 0 else off - 1, **fields)
        got = rows(way * off)
        assert (got != rows(0)).any()
        verdict = judged(made, sample, "q_c", got)
        assert verdict.right is (off <= limit)
        assert verdict.farthest == (off if off <= limit else 0)


def test_half_a_row_of_q_c_is_no_row() -> None:
    made, sample, rows = q_c_case("query_norm", -1)
    mixed = np.concatenate((rows(0)[:, :768], rows(1)[:, 768:]), axis=-1)
    verdict = judged(made, sample, "q_c", mixed)
    assert verdict.wrong == 384 * len(sample.live) and verdict.moved == 0


def test_templates_that_let_tensor_cores_sum_squares_are_known() -> None:
    found = {
        f"query/{path.name}"
        for path in (TEMPLATES / "query").glob("*.cu.j2")
        if "add_token_squares(" in path.read_text(encoding="utf-8")
    }
    assert {*TENSOR_SUMS} == found


@pytest.mark.parametrize("fp4", [False, True])
def test_codes_and_scale_are_of_one_largest_magnitude(fp4: bool) -> None:
    """Codes as computed beside scales of a neighbour, each right by itself: wrong."""
    config = schema.IndexFront(batch=40, fp4=fp4)
    front = families.of("index_front")
    sample = front.sample(config, np.random.default_rng(7), 256)
    given = {name: sample.arrays[name] for name in ("wq_b", "w_qa", "norm_w", "norm_b")}
    projected = sample.arrays["projected"][sample.live]
    values = index_front.front_values(projected, **given, **sample.scalars)
    here, beside = (index_front.front_outputs(values, fp4=fp4, nudge=n) for n in (0, 1))
    scales = "q_scale" if fp4 else "w_out"
    for codes, scale, right in ((here, here, True), (beside, beside, True), (here, beside, False)):
        found = dict(judged_front(config, sample, codes.q_out, scales, getattr(scale, scales)))
        assert all(verdict.right for verdict in found.values()) is right


def judged_front(
    config: schema.Config, sample: Sample, codes: np.ndarray, scales: str, given: np.ndarray
) -> list[tuple[str, Verdict]]:
    listed = families.of("index_front").expect(plan(config), sample)
    mine: list[Expected] = [each for each in listed if each.tie == "query"]
    held = {"q_out": np.zeros((sample.rows, *codes.shape[1:]), codes.dtype)}
    held[scales] = np.zeros((sample.rows, *given.shape[1:]), given.dtype)
    held["q_out"][sample.live], held[scales][sample.live] = codes, given
    return [(expected.name, verdict) for expected, verdict in verdicts(mine, held)]


@pytest.mark.parametrize("way", [1, -1])
def test_a_gated_value_is_of_a_sigmoid_within_two_ulp(way: int) -> None:
    config = schema.Gate(heads=16, batch=128)
    sample = families.of("gate").sample(config, np.random.default_rng(2), 256)
    lengths = np.full_like(sample.arrays["lengths"], 1)
    sample = replace(sample, arrays=sample.arrays | {"lengths": lengths})
    values = sample.arrays["values"][:, sample.live]
    gates = sample.view("gate")
    gates = np.where(gates & samples.INF == samples.INF, 0, gates)
    sample = replace(sample, arrays=sample.arrays | {"gate": gates}, inner={})
    for off in (1, 2, 3):
        got = value.gate(values, gates[sample.live], lengths, ulps=way * off)
        verdict = judged(plan(config), sample, "gate", got)
        assert verdict.right is (off <= 2)
        assert off > 2 or verdict.farthest == off


def test_neighbours_come_in_pairs_the_nearest_first() -> None:
    assert [*neighbours(2)] == [0, 1, -1, 2, -2]
    want, other = np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)
    got = np.array([[0, 0, 0], [1, 1, 1]], np.uint8)
    (verdict,) = together([Judged(tolerance.exact, got, (want, other + 1, other))], "near")
    assert verdict.right and (verdict.moved, verdict.farthest) == (1, 1)
    assert verdict.reason == "right: bit for bit, near; 1 by a neighbour, the farthest 1 off"
    assert (verdict.different, verdict.largest_step) == (3, 1)
