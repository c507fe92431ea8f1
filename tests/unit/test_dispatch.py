"""Dispatch on a machine of fakes: which kernel serves how many rows, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import kgen
from kgen.codegen.compiler import nvrtc
from kgen.codegen.plan import plan
from kgen.codegen.schema import make, matrix

from ..helpers import cubins, fakes
from ..helpers.fakes import FakeCuda, install, tensors

PATCH = pytest.MonkeyPatch
BATCHES = (1, 4, 8)
OFFSET = plan(make("query", {"heads": 2, "batch": 8}), "sm_90a").params.offset("num_rows")


@pytest.fixture(autouse=True)
def cuda(monkeypatch: PATCH, tmp_path: Path) -> FakeCuda:
    monkeypatch.setattr(nvrtc, "compile", cubins.compiled)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KGEN_ARCH", "sm_90a")
    return install(monkeypatch)[0]


def dispatch(**changes: Any) -> kgen.Dispatch:
    return kgen.Dispatch("query", **{"heads": 2, "batches": BATCHES} | changes)


def launched(cuda: FakeCuda) -> list[int]:
    """``num_rows`` of every launch."""
    return [struct.unpack_from("<i", run.params, OFFSET)[0] for run in cuda.launches]


def given(rows: int, **changes: Any) -> dict[str, Any]:
    return tensors(batch=rows, **changes)


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (0, 1)])
def test_the_smallest_batch_that_holds_the_rows(cuda: FakeCuda, rows: int, batch: int) -> None:
    query = dispatch()
    assert query.kernel(rows) is kgen.query(heads=2, batch=batch)
    arrays = given(rows)
    assert query(arrays.pop("qkv"), **arrays) is arrays["out"]
    assert launched(cuda) == ([rows] if rows else [])


def test_num_rows_comes_before_the_array(cuda: FakeCuda) -> None:
    query = dispatch()
    query(**given(8), num_rows=3)
    assert launched(cuda) == [3] and list(query._kernels) == [1]


def test_warmup_loads_all_and_calls_load_none(cuda: FakeCuda) -> None:
    query = dispatch()
    query.warmup()
    before = cuda.names().count("cuModuleLoadData")
    cuda.capturing.add(0x70)
    for rows in range(1, 9):
        query(**given(rows))
    assert launched(cuda) == list(range(1, 9))
    assert cuda.names().count("cuModuleLoadData") == before


def test_bound_launches_any_rows_into_one_output(cuda: FakeCuda) -> None:
    arrays = given(6)
    step = dispatch().bind(arrays.pop("qkv"), **arrays)
    assert not cuda.launches
    for rows in (1, 2, 4, 6, 0):
        assert step(rows) is arrays["out"]
    assert launched(cuda) == [1, 2, 4, 6]


def test_bind_allocates_an_output_once(cuda: FakeCuda) -> None:
    import sys

    step = dispatch().bind(**given(8, out=None))
    ((out, _),) = sys.modules["torch"].allocated
    assert step.out is out and out.shape == (8, 2, 576)
    pointer = struct.pack("<Q", out.pointer)
    for rows in (1, 3, 8):
        assert step(rows) is out
    assert all(pointer in run.params for run in cuda.launches)


def test_bind_for_fewer_rows_than_the_arrays_have(cuda: FakeCuda) -> None:
    step = dispatch().bind(**given(20), num_rows=5)
    step(5, stream=0x99)
    assert launched(cuda) == [5] and cuda.launches[0].stream == 0x99
    with pytest.raises(kgen.ArgumentError, match=r"num_rows: got 6; allowed .* 0\.\.5"):
        step(6)
    with pytest.raises(kgen.ArgumentError, match="num_rows: got '5'"):
        step("5")  # type: ignore[arg-type]


def test_refused_calls(cuda: FakeCuda) -> None:
    query = dispatch()
    with pytest.raises(kgen.ArgumentError, match="num_rows: got 9; allowed is at most 8,"):
        query(**given(9))
    with pytest.raises(kgen.ArgumentError, match="qkv: got nothing"):
        query()
    with pytest.raises(kgen.ArgumentError, match=r"qkv: got shape \(\)"):
        query(3)
    with pytest.raises(kgen.ArgumentError, match="w_q: unknown argument; did you mean w_qb"):
        query(**given(2), w_q=1)
    assert not cuda.launches


def test_a_mailbox_does_not_tell_the_rows(cuda: FakeCuda) -> None:
    wait = kgen.Dispatch("query_wait", heads=2, dcp=2, batches=BATCHES)
    mailbox = fakes.FakeTensor((64, 4, 576), "float8_e4m3fn", 1 << 20)
    with pytest.raises(kgen.ArgumentError, match="num_rows: got nothing; allowed is a number"):
        wait(mailbox)
    wait(mailbox, num_rows=3)
    assert len(cuda.launches) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": ()}, r"batches: got \(\)"),
        ({"batches": (4, 1)}, r"batches: got \(4, 1\); allowed is .* up"),
        ({"batches": (1, 4, 4)}, r"batches: got \(1, 4, 4\)"),
        ({"batches": (0, 1)}, "batch: got 0"),
        ({"batches": (1, 257)}, "batch: got 257"),
        ({"batches": (1, 4.0)}, r"batch: got 4\.0"),
        ({"batches": (True, 2)}, "batch: got True"),
        ({"batch": 8}, "batch: got 8; a dispatcher has batches"),
        ({"heads": (8, 16)}, r"heads: got \(8, 16\)"),
        ({"head": 8}, "head: got 8"),
        ({"arch": "none"}, "arch: got 'none'"),
    ],
)
def test_refused_fields(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(kgen.ConfigError, match=message):
        dispatch(**changes)


def test_tables_of_a_matrix_file(tmp_path: Path) -> None:
    query = dispatch(dsa=True, fp8=True, release="end", store_qc=False)
    value = kgen.Dispatch("value", heads=2, batches=(2, 4), q=2)
    path = tmp_path / "both.toml"
    path.write_text(query.matrix + value.matrix)
    assert matrix.select((str(path),), None, {}) == (*query, *value)
    assert kgen.warmup(path) == kgen.warmup([*query, *value])
