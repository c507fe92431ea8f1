"""Decode context parallelism on the CPU: every rank's clusters run at once and poll one another."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.compiler.render import render
from kgen.codegen.dcp import layout
from kgen.codegen.dims import PARTIAL_SENTINEL
from kgen.codegen.emulator.executor import emulate
from kgen.codegen.errors import EmulationError
from kgen.codegen.plan import plan
from kgen.codegen.reference import dcp
from kgen.codegen.reference.formats import from_bf16, to_bf16, to_e4m3
from kgen.codegen.verify import tolerance
from kgen.codegen.verify.samples import bf16

from ..conftest import missing_compiler
from ..helpers import ranks
from ..helpers.ranks import Arrays, Queries, Tails, filled, launch

cpu = pytest.mark.cpu

# Ranks, heads and rows, each with a transport and a form; every pair of two occurs.
SHAPES = [(dcp, heads, batch) for dcp in (2, 4) for heads in (1, 2) for batch in (1, 3, 8, 16, 33)]
DENSE: Arrays = {}
DSA: Arrays = {"dsa": True, "q_heads": 64}


def how(number: int) -> Arrays:
    dcp, heads, batch = number // 10, number // 5 % 2, number % 5
    transport = ("unicast", "multicast")[(dcp + batch) % 2]
    return {"transport": transport} | (DSA if (heads + batch) % 2 else DENSE)


CASES = [(*shape, how(number)) for number, shape in enumerate(SHAPES)]


def name(case: tuple[int, int, int, Arrays]) -> str:
    dcp, heads, batch, fields = case
    form = "dsa" if "dsa" in fields else "dense"
    return f"{dcp}x{heads}x{batch}-{fields['transport']}-{form}"


def test_cases_mix_transports_forms_and_shapes() -> None:
    kinds = {(c[3]["transport"], "dsa" in c[3]) for c in CASES}
    assert len(kinds) == 4
    for place in range(3):
        for value in {case[place] for case in CASES}:
            seen = [case[3] for case in CASES if case[place] == value]
            assert {fields["transport"] for fields in seen} == {"unicast", "multicast"}
            assert {"dsa" in fields for fields in seen} == {True, False}


SLUGS = (
    *("query-h1-b5-scheme.ksplit", "query-h1-b5-scheme.ksplit-dcp2-transport.unicast"),
    *("query-h1-b5", "query-h1-b5-dcp2-transport.unicast", "query-h1-b5-dsa-fp8"),
    *("query-h1-b5-dsa", "query-h1-b5-dcp2-dsa-transport.unicast", "query_wait-h2-b3-dcp2"),
    *("query-h2-b3-dcp2-no_poll-transport.unicast", "dcp_value-h2-b3-dcp2", "dcp_value-h1-b2-dcp8"),
    *("dcp_value-h1-b18-dcp2", "dcp_value-h1-b2-dcp2", "dcp_value-h1-b33-q3-dcp2"),
    *("dcp_value-h2-b8-q4-dcp4", "dcp_value-h1-b5-dcp4-q_heads8-bf16", "dcp_value-h1-b3-dcp4"),
)  # of the other tests


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of the tests, compiled side by side where one process runs most of them."""
    few = len(request.session.items) < len(CASES)
    if few or missing_compiler() or "PYTEST_XDIST_WORKER" in os.environ:
        return
    configs = {schema.parse_slug(slug) for slug in SLUGS}
    for ranks_, heads, batch, fields in CASES:
        plain = {"dsa": True} if "dsa" in fields else {}
        shape = {"heads": heads, "batch": batch}
        for more in (plain, fields | {"dcp": ranks_}):
            configs.add(schema.make("query", shape | more))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda config: emulate(plan(config)), configs))


@cpu
@pytest.mark.parametrize("case", CASES, ids=name)
def test_gathered_query(case: tuple[int, int, int, Arrays]) -> None:
    """Every rank's mailbox holds what all ranks compute without DCP, and sentinels elsewhere."""
    dcp, heads, batch, fields = case
    subject = Queries.of(dcp=dcp, heads=heads, batch=batch, seed=batch, **fields)
    first = CASES.index(case)
    steps = 3 if dcp * heads * batch <= 6 else 2 if dcp * heads * batch <= 12 else 1
    for step in range(first, first + steps):
        subject.step(step % 2, seed=step, lazy=(step + heads) % 2 == 0)


@cpu
@pytest.mark.parametrize("fields", [{"scheme": "ksplit"}, {"dsa": True, "fp8": True}])
def test_gathered_query_of_other_forms(fields: Arrays) -> None:
    Queries.of(dcp=2, heads=1, batch=5, transport="unicast", **fields).step(0, seed=5)


@cpu
@pytest.mark.parametrize("fields", [DENSE, {"dsa": True}])
def test_queries_of_nan_and_infinity_are_no_sentinels(fields: Arrays) -> None:
    """The CPU run refuses a sentinel that is published."""
    subject = Queries.of(dcp=2, heads=1, batch=5, transport="unicast", **fields)
    qkv = bf16(subject.rng, 5, 2112)
    for row, bits in enumerate((0xFFFF, 0x7FFF, 0xFF80, 0x7F80)):
        qkv[row, 7] = bits
    qkv[1, :] = 0xFFFF
    subject.step(1, seed=1, qkv=qkv)


@cpu
def test_fewer_rows_than_the_batch() -> None:
    subject = Queries.of(dcp=2, heads=1, batch=33, transport="unicast")
    given = subject.inputs()
    want = subject.expected(given, 3)
    launch(subject.whole, subject.boxes, given, 0, seed=3, num_rows=[32, 32])
    for rank, box in enumerate(subject.boxes):
        queries = box.view("mailbox", 0)
        assert (queries[:32] == want[:32]).all(), rank
        assert (queries[32:] == 0xFF).all() and (given[rank]["out"][32:] == 0xFF).all(), rank


@cpu
@pytest.mark.parametrize("fields", [{}, {"dsa": True, "q_heads": 6}])
@pytest.mark.parametrize("lazy", [True, False])
def test_without_poll_and_query_wait(fields: Arrays, lazy: bool) -> None:
    """The same bytes; query_wait reads a full mailbox, changes nothing and ends."""
    subject = Queries.of(dcp=2, heads=2, batch=3, transport="unicast", poll=False, **fields)
    wide = {"bf16": True, "q_heads": 6} if fields else {}
    wait = emulate(plan(schema.make("query_wait", {"heads": 2, "batch": 3, "dcp": 2, **wide})))
    assert "mailbox" not in subject.whole.plan.params.names
    for parity, seed in ((0, 1), (1, 2), (0, 3)):
        given = subject.inputs()
        want = subject.expected(given, seed)
        launch(subject.whole, subject.boxes, given, parity, seed=seed, lazy=lazy)
        before = [box.view("mailbox", parity).copy() for box in subject.boxes]
        launch(wait, subject.boxes, [{}, {}], parity, seed=seed, lazy=lazy)
        for box, held in zip(subject.boxes, before, strict=True):
            assert (box.view("mailbox", parity) == held).all()
        subject.check(given, want, parity)


@cpu
def test_query_wait_of_a_missing_word_is_a_deadlock() -> None:
    wait = emulate(plan(schema.make("query_wait", {"heads": 1, "batch": 2, "dcp": 2})))
    boxes = ranks.boxes_of(layout.Shape(2, 1, 2))
    for box in boxes:
        box.view("mailbox", 0)[...] = 1
    launch(wait, boxes, [{}, {}], 0, seed=1)
    boxes[1].view("mailbox", 0)[1, 1, 572:] = 0xFF
    with pytest.raises(EmulationError, match=r"(?s)deadlock.*rank 1 CTA \(1, 0, 0\)") as caught:
        launch(wait, boxes, [{}, {}], 0, seed=1)
    assert "rank 0" not in str(caught.value)


@cpu
@pytest.mark.parametrize("batch", [3, 16])
def test_a_rank_that_never_sends_is_a_deadlock_that_names_the_poll(batch: int) -> None:
    subject = Queries.of(dcp=2, heads=1, batch=batch, transport="unicast")
    given = subject.inputs()
    with pytest.raises(EmulationError) as caught:
        launch(subject.whole, subject.boxes, given, 0, seed=1, num_rows=[batch, 0])
    text = str(caught.value)
    assert "deadlock" in text and "waits for a mailbox" in text
    assert re.search(r"rank 0 CTA", text) and not re.search(r"rank 1 CTA .* waits", text)
    line = re.search(r"at: \S+\.cu:(\d+)", text)
    assert line and "wait_for_words<" in source_line(subject, int(line[1])), text


def source_line(subject: Queries, number: int) -> str:
    return render(subject.whole.plan).text.splitlines()[number - 1]


@cpu
def test_a_mailbox_that_nobody_refilled_is_noticed() -> None:
    subject = Queries.of(dcp=2, heads=1, batch=3, transport="unicast")
    given = subject.inputs()
    launch(subject.whole, subject.boxes, given, 0, seed=1)
    with pytest.raises(EmulationError, match="twice before it is refilled"):
        launch(subject.whole, subject.boxes, subject.inputs(), 0, seed=2)


def every_bf16() -> np.ndarray:
    return from_bf16(np.arange(1 << 16, dtype=np.uint16))


@pytest.mark.parametrize("scale", [0.0, 2.0**-20, 1.0, 7.3, 3e38, np.inf, np.nan, -1.0])
def test_no_fp8_byte_is_the_sentinels(scale: float) -> None:
    """Of any BF16 query value, NaN and infinity included, under any scale."""
    with np.errstate(all="ignore"):
        scaled = (every_bf16() * np.float32(scale)).astype(np.float32).astype(np.float64)
    found = to_e4m3(scaled)
    assert (found != 0xFF).all()
    assert (found == 0x7F).any() == bool(np.isnan(scaled).any())


def test_no_bf16_pair_is_the_sentinel() -> None:
    """The kernels' conversion to BF16 gives 0x7FFF for every NaN, and no other has 0xFFFF."""
    with np.errstate(invalid="ignore"):
        numbers = every_bf16()
    bits = np.where(np.isnan(numbers), 0x7FFF, to_bf16(numbers))
    assert (bits != 0xFFFF).all()


SOURCES: dict[str, Callable[[Arrays], None]] = {
    "empty": lambda a: a["local_lengths"].fill(0),
    "negative length": lambda a: a["local_lengths"].fill(-7),
    "NaN": lambda a: a["lse"].fill(np.nan),
    "-inf": lambda a: a["lse"].fill(-np.inf),
    "inf": lambda a: a["lse"].fill(np.inf),
    "negative zeros": lambda a: a["rows"].fill(0x8000),
    "pairs that are the sentinel": lambda a: a["rows"].view(np.uint32).fill(PARTIAL_SENTINEL),
    "NaN rows": lambda a: a["rows"][:, :, ::7].fill(0x7FC0),
    "negative NaN rows": lambda a: a["rows"][:, :, ::7].fill(0xFFFF),
    "lowest": lambda a: a["lse"].fill(-3.3e38),
    "1e4 apart": lambda a: a["lse"].__setitem__(..., a["lse"] + np.float32(1e4)),
}


def judged(subject: Tails, given: list[Arrays], parity: int, seed: int) -> Iterator[np.ndarray]:
    """Run, and judge each rank's output; then all mailboxes must be full of sentinels again."""
    subject.run(given, parity, seed, lazy=seed % 2 == 0)
    for rank, arrays in enumerate(given):
        want = subject.expected(given, rank)
        verdict = tolerance.close(arrays["out"], want)
        assert verdict.right, f"rank {rank}: {verdict}"
        yield arrays["out"]
    batch = subject.config.batch
    for name in ("mailbox", "partials", "lse_box"):
        for box in subject.boxes:
            if name == "mailbox":  # the kernel refills the rows of this launch, all heads read
                read = subject.config.dcp * subject.config.heads
                box.view(name, parity)[:batch, read:] = np.iinfo(box.view(name, parity).dtype).max
        assert filled(subject.boxes, name, parity), name


@cpu
@pytest.mark.parametrize(
    "fields",
    [
        {"dcp": 2, "heads": 2, "batch": 3},
        {"dcp": 2, "heads": 1, "batch": 18},
        {"dcp": 2, "heads": 1, "batch": 33, "q": 3},
        {"dcp": 4, "heads": 1, "batch": 5, "bf16": True, "q_heads": 8},
        {"dcp": 4, "heads": 2, "batch": 8, "q": 4},
        {"dcp": 8, "heads": 1, "batch": 2},
    ],
    ids=lambda fields: "-".join(f"{k}{v}" for k, v in fields.items()),
)
def test_dcp_value(fields: Arrays) -> None:
    """Over three steps of both parities; single heads of single sources are no numbers."""
    subject = Tails.of(**fields)
    for step in range(3):
        given = subject.inputs()
        for arrays in given:
            lse = arrays["lse"]
            lse.flat[subject.rng.integers(0, lse.size, 3)] = [np.nan, -np.inf, np.inf]
            arrays["local_lengths"][...] = subject.rng.integers(-1, 3, len(arrays["local_lengths"]))
            arrays["rows"][0, 0, :8] = [0, 0x8000] * 4
            arrays["rows"][1, 0, 0:8:2] = 0x8000
        list(judged(subject, given, step % 2, seed=step))


@cpu
@pytest.mark.parametrize("dcp", [2, 8])
@pytest.mark.parametrize("kind", SOURCES)
def test_dcp_value_of_one_odd_source(kind: str, dcp: int) -> None:
    subject = Tails.of(dcp=dcp, heads=1, batch=2, seed=dcp)
    given = subject.inputs()
    SOURCES[kind](given[1])
    outputs = list(judged(subject, given, 1, seed=4))
    if kind not in ("NaN rows", "negative NaN rows"):
        assert all((from_bf16(out) == from_bf16(out)).all() for out in outputs)


@cpu
@pytest.mark.parametrize("kind", ["empty", "negative length", "NaN", "-inf", "inf"])
def test_dcp_value_without_any_source_is_zero(kind: str) -> None:
    subject = Tails.of(dcp=4, heads=1, batch=3)
    given = subject.inputs()
    for arrays in given:
        SOURCES[kind](arrays)
        arrays["rows"][...] = 0x7FC0
    for out in judged(subject, given, 0, seed=2):
        assert (from_bf16(out) == 0).all()


@cpu
def test_dcp_value_of_the_lowest_lses_weighs_them_alike() -> None:
    """Finite, yet below that of a source without keys."""
    subject = Tails.of(dcp=2, heads=1, batch=3)
    given = subject.inputs()
    for arrays in given:
        SOURCES["lowest"](arrays)
        arrays["local_lengths"][...] = arrays["lengths"][...] = 5
    for out in judged(subject, given, 0, seed=2):
        assert (from_bf16(out) != 0).any()


WATCHED = {"dcp": 2, "heads": 1, "batch": 3, "watchdog": 50}


@pytest.mark.parametrize("kernel", ["query", "query_wait", "dcp_value"])
def test_a_watchdog_takes_an_address_to_report_to(kernel: str) -> None:
    assert "report" in plan(schema.make(kernel, WATCHED)).params.names


@cpu
@pytest.mark.parametrize("poll", [True, False])
def test_a_watchdog_changes_no_query(poll: bool) -> None:
    """On a CPU it never barks: a poll without end is a deadlock there."""
    fields = WATCHED if poll else WATCHED | {"watchdog": 0, "poll": False}
    subject = Queries.of(transport="unicast", **fields)
    given = subject.inputs()
    want = subject.expected(given, 1)
    launch(subject.whole, subject.boxes, given, 0, seed=1)
    if not poll:
        wait = emulate(plan(schema.make("query_wait", WATCHED)))
        launch(wait, subject.boxes, [{}, {}], 0, seed=1)
    subject.check(given, want, 0)


@cpu
def test_a_watchdog_changes_no_dcp_value() -> None:
    subject = Tails.of(**WATCHED)
    list(judged(subject, subject.inputs(), 0, seed=2))


@cpu
def test_dcp_value_of_empty_requests_is_zero_whatever_the_gate() -> None:
    subject = Tails.of(dcp=2, heads=1, batch=4, q=2)
    given = subject.inputs()
    for arrays in given:
        arrays["lengths"][...] = (0, 5)
        arrays["gate"][:2] = 0x7FC0
    for out in judged(subject, given, 0, seed=2):
        assert (out[:2] == 0).all() and out[2:].any()


def test_merge_weighs_by_powers_of_two() -> None:
    one, two = np.full((1, 1, 512), 0x3F80, np.uint16), np.full((1, 1, 512), 0x4000, np.uint16)
    lses = [np.full((1, 1), lse, np.float32) for lse in (1.0, 0.0)]
    merged = from_bf16(dcp.merge([one, two], lses))
    assert np.allclose(merged, (2 * 1 + 1 * 2) / 3, rtol=2**-8)


# Single edits of the rendered source, each of which must fail: old text, new text.
QUERY_EDITS = (
    ("params.rank * kNumHeads + head", "head"),
    ("params.rank * kNumHeads + head", "params.rank + head * 2"),
    ("i % kPieces * 16;\n        publish", "(i % kPieces ^ 1) * 16;\n        publish"),
    ("rank < 2; ++rank", "rank < 1; ++rank"),
    (
        "multimem_st_relaxed_sys(reinterpret_cast<uint8_t*>(params.multicast) + offset",
        "st_relaxed_sys(nullptr",
    ),
)
TAIL_EDITS = (
    ("positive_zeros(v.word[k])", "v.word[k]"),
    ("if (!valid) lse = kNoSource;", ""),
    ("length > 0 && ", ""),
    ("store_global16(row + 16 * i, empty);", ""),
    ("store_global16(box + row + i % kPieces * 16, empty);", ""),
    ("params.lse_box) + place) = kSentinel;", "params.lse_box) + place) = 0;"),
    ("head / kNumHeads;", "head % kRanks;"),
)


def edited(made: Queries | Tails, old: str, new: str) -> None:
    """Put the edited kernel in the place of the right one."""
    whole = made.whole if isinstance(made, Queries) else made.made
    source = render(whole.plan)
    assert old in source.text, old
    wrong = emulate(whole.plan, source=replace(source, text=source.text.replace(old, new, 1)))
    if isinstance(made, Queries):
        made.whole = wrong
    else:
        made.made = wrong


@cpu
@pytest.mark.parametrize(("old", "new"), QUERY_EDITS)
def test_a_wrong_query_is_noticed(old: str, new: str) -> None:
    transport = "multicast" if "multicast" in old else "unicast"
    subject = Queries.of(dcp=2, heads=2, batch=3, transport=transport)
    edited(subject, old, new)
    with pytest.raises((AssertionError, EmulationError)):
        subject.step(0, seed=1)


@cpu
@pytest.mark.parametrize(("old", "new"), TAIL_EDITS)
def test_a_wrong_dcp_value_is_noticed(old: str, new: str) -> None:
    subject = Tails.of(dcp=2, heads=2, batch=3)
    edited(subject, old, new)
    given = subject.inputs()
    given[0]["rows"][0, :, 1:8:2] = 0x8000
    given[0]["rows"][0, :, 0:8:2] = 0
    given[1]["local_lengths"][1] = 0
    given[1]["lse"][2] = np.nan
    given[0]["lengths"][...] = 1  # of all ranks
    with pytest.raises((AssertionError, EmulationError)):
        list(judged(subject, given, 0, seed=2))
