from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kgen.codegen.errors import ArgumentError
from kgen.codegen.plan import ParamTable, Scalar
from kgen.codegen.runtime.arguments import Arguments, Call

from ...helpers.fakes import (
    Dlpack,
    FakeCuda,
    FakeTensor,
    FakeTorch,
    Interface,
    install,
    table,
    tensors,
)

ABSENT = object()
Changes = Callable[[], dict[str, Any]]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCuda, FakeTorch]]:
    yield install(monkeypatch)


def check(heads: int = 2, batch: int = 8, **changes: Any) -> Call:
    given = tensors(heads, batch) | changes
    return Arguments(table(heads, batch)).check(given)


def fields(call: Call, heads: int = 2, batch: int = 8) -> dict[str, Any]:
    params = table(heads, batch)
    names = [field.name for field in params.fields]
    return dict(zip(names, struct.unpack(params.format, call.packed), strict=True))


def test_every_field_lands_in_its_place() -> None:
    given = tensors()
    got = fields(check(eps=0.5, num_rows=3))
    assert {name: got[name] for name in given} == {n: t.pointer for n, t in given.items()}
    assert (got["qkv_stride"], got["w_uk_stride"]) == (2112, 128 * 512)
    assert (got["page_stride"], got["page_size"]) == (64 * 576, 64)
    assert (got["out_stride"], got["eps"], got["num_rows"]) == (2 * 576, 0.5, 3)


def test_defaults_come_from_the_table() -> None:
    got = fields(check())
    assert got["num_rows"] == 8 and got["eps"] == pytest.approx(1e-6)


def test_padded_rows_heads_and_pages() -> None:
    got = fields(
        check(
            qkv=FakeTensor((8, 2112), "bfloat16", 1 << 40, (4096, 1)),
            w_uk=FakeTensor((2, 128, 512), "bfloat16", 2 << 40, (256 * 512, 512, 1)),
            cache=FakeTensor((4, 16, 576), "float8_e4m3fn", 3 << 40, (99 * 576, 576, 1)),
            out=FakeTensor((8, 2, 576), "uint8", 4 << 40, (2048, 576, 1)),
        )
    )
    assert (got["qkv_stride"], got["w_uk_stride"]) == (4096, 256 * 512)
    assert (got["page_stride"], got["page_size"], got["out_stride"]) == (99 * 576, 16, 2048)


@pytest.mark.parametrize(
    ("name", "shape", "strides", "field", "value"),
    [
        ("qkv", (1, 2112), (7, 1), "qkv_stride", 2112),
        ("w_uk", (1, 128, 512), (3, 512, 1), "w_uk_stride", 65536),
        ("cache", (1, 64, 576), (5, 576, 1), "page_stride", 36864),
        ("cache", (4, 1, 576), (576, 77, 1), "page_stride", 576),
        ("out", (1, 1, 576), (9, 11, 1), "out_stride", 576),
    ],
)
def test_strides_of_extent_1_are_ignored(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], field: str, value: int
) -> None:
    dtype = str(tensors()[name].dtype).removeprefix("torch.")
    call = check(1, 1, **{name: FakeTensor(shape, dtype, 1 << 40, strides)})
    assert fields(call, 1, 1)[field] == value


def test_fewer_rows_than_batch() -> None:
    small: dict[str, Any] = {
        "qkv": FakeTensor((3, 2112), "bfloat16", 1 << 40),
        "slots": FakeTensor((3,), "int64", 2 << 40),
        "out": FakeTensor((3, 2, 576), "uint8", 3 << 40),
    }
    assert check(num_rows=3, **small).rows == 3
    assert check(**small).rows == 3  # all agree
    del small["out"]
    with pytest.raises(ArgumentError, match=r"out: got shape .*8 rows; allowed is 3, as qkv has"):
        check(**small)


def test_no_rows_with_empty_arrays() -> None:
    call = check(
        num_rows=0,
        qkv=FakeTensor((0, 2112), "bfloat16", 0),
        slots=FakeTensor((0,), "int64", 0),
        out=FakeTensor((0, 2, 576), "uint8", 0),
    )
    assert call.rows == 0


@pytest.mark.parametrize("value", [0, 8, np.int64(8), np.int32(0)])
def test_num_rows_in_range(value: Any) -> None:
    assert check(num_rows=value).rows == value


REFUSED: list[tuple[Changes, str]] = [
    (lambda: {"num_rows": 9}, r"num_rows: got 9; allowed is an integer in 0\.\.8"),
    (lambda: {"num_rows": -1}, r"num_rows: got -1; allowed is an integer in 0\.\.8"),
    (lambda: {"num_rows": True}, "num_rows: got True"),
    (lambda: {"num_rows": 3.0}, r"num_rows: got 3\.0"),
    (lambda: {"num_rows": "3"}, "num_rows: got '3'"),
    (lambda: {"eps": float("nan")}, "eps: got nan; allowed is a finite number"),
    (lambda: {"eps": 1e300}, r"eps: got 1e\+300"),
    (lambda: {"eps": -1.0}, r"eps: got -1\.0; allowed is a finite number of 0\.0 or more"),
    (lambda: {"w_q": 1}, r"w_q: unknown argument; did you mean w_q\w+\? the call takes qkv, "),
    (lambda: {"zzz": 1}, "zzz: unknown argument; the call takes qkv, "),
    (lambda: {"w_qb": ABSENT}, "w_qb: got nothing; allowed is an array"),
    (lambda: {"w_qb": ABSENT, "slots": None}, "w_qb, slots: got nothing"),
    (lambda: {"q_scale_inv": 0.5}, r"q_scale_inv: got float 0\.5; allowed is a float32 array"),
    (lambda: {"qkv": np.zeros((8, 2112), np.uint16)}, "qkv: got memory of the CPU"),
    (lambda: {"w_qa": np.zeros(1536, np.uint16)}, "w_qa: got memory of the CPU"),
    (lambda: {"qkv": FakeTensor((8, 2112), "bfloat16", 64, device=-1)}, "qkv: got memory of the"),
    (
        lambda: {"w_qa": FakeTensor((1536,), "float16", 64)},
        "w_qa: got dtype float16; allowed is bfloat16 or uint16",
    ),
    (
        lambda: {"out": FakeTensor((8, 2, 576), "float8_e5m2", 64)},
        r"out: got dtype float8_e5m2; allowed is float8_e4m3fn or uint8 \(float8_e5m2 is another",
    ),
    (
        lambda: {"cache": Dlpack((4, 64, 576), (12, 8), 64)},
        "cache: got dtype float8_e5m2; allowed is uint8 or float8_e4m3fn",
    ),
    (
        lambda: {"slots": FakeTensor((8,), "int32", 64)},
        "slots: got dtype int32; allowed is int64",
    ),
    (
        lambda: {"w_qb": FakeTensor((383, 1536), "bfloat16", 64)},
        r"w_qb: got shape \(383, 1536\); allowed is \(384, 1536\)",
    ),
    (
        lambda: {"w_qa": FakeTensor((1, 1536), "bfloat16", 64)},
        r"w_qa: got shape \(1, 1536\); allowed is \(1536,\)",
    ),
    (
        lambda: {"qkv": FakeTensor((8, 2111), "bfloat16", 64)},
        r"qkv: got shape \(8, 2111\); allowed is \(num_rows, 2112 or more\)",
    ),
    (
        lambda: {"cache": FakeTensor((4, 0, 576), "uint8", 64)},
        r"cache: got shape \(4, 0, 576\); allowed is \(any, 1 or more, 576\)",
    ),
    (
        lambda: {"k_scale_inv": FakeTensor((2,), "float32", 64)},
        r"k_scale_inv: got shape \(2,\); allowed is one element",
    ),
    (
        lambda: {"qkv": FakeTensor((8, 2112), "bfloat16", 64, (2113, 1))},
        r"qkv: got strides \(2113, 1\).*allowed is \(a multiple of 8; packed\)",
    ),
    (
        lambda: {"qkv": FakeTensor((8, 2112), "bfloat16", 64, (1, 8))},
        r"qkv: got strides \(1, 8\)",
    ),
    (
        lambda: {"w_qb": FakeTensor((384, 1536), "bfloat16", 64, (1544, 1))},
        r"w_qb: got strides \(1544, 1\).*allowed is \(packed; packed\)",
    ),
    (
        lambda: {"out": FakeTensor((8, 2, 576), "uint8", 64, (0, 576, 1))},
        r"out: got strides \(0, 576, 1\).*a multiple of 16, no overlap",
    ),
    (
        lambda: {"slots": FakeTensor((8,), "int64", 64, (2,))},
        r"slots: got strides \(2,\)",
    ),
    (
        lambda: {"w_kva": FakeTensor((512,), "bfloat16", 72)},
        "w_kva: got the address 0x48; allowed is a multiple of 16 bytes",
    ),
    (
        lambda: {"slots": FakeTensor((8,), "int64", 68)},
        "slots: got the address 0x44; allowed is a multiple of 8 bytes",
    ),
    (
        lambda: {"q_scale_inv": FakeTensor((), "float32", 66)},
        "q_scale_inv: got the address 0x42; allowed is a multiple of 4 bytes",
    ),
    (
        lambda: {"w_qb": FakeTensor((384, 1536), "bfloat16", 1 << 40, device=1)},
        "w_qb: got an array on cuda:1; allowed is one on cuda:0, where qkv is",
    ),
    (
        lambda: {"out": FakeTensor((8, 2, 576), "uint8", (1 << 24) + 4096)},
        "out: got memory that qkv uses too; allowed is memory of its own",
    ),
    (
        lambda: {"out": FakeTensor((8, 2, 576), "uint8", 6 << 24)},
        "out: got memory that cache uses too",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused(changes: Changes, message: str) -> None:
    arguments = Arguments(table())
    arguments.check(tensors())  # what was found right before must not let through what is not
    given = {k: v for k, v in (tensors() | changes()).items() if v is not ABSENT}
    with pytest.raises(ArgumentError, match=message):
        arguments.check(given)
    arguments.check(tensors())


@pytest.mark.parametrize("pointer", [4, 8, 12])
def test_alignment_is_checked_of_remembered_layouts(pointer: int) -> None:
    given = tensors()
    given["w_qb"].pointer += pointer
    with pytest.raises(ArgumentError, match="w_qb: got the address"):
        check(**given)


def test_output_between_the_rows_of_an_input_is_its_own_memory() -> None:
    base, pitch = 1 << 40, 8192
    qkv = FakeTensor((8, 2112), "bfloat16", base, (pitch // 2, 1))
    out = FakeTensor((8, 2, 576), "uint8", base + 2112 * 2, (pitch, 576, 1))
    assert check(qkv=qkv, out=out).outputs == (out,)
    out.pointer -= 16
    with pytest.raises(ArgumentError, match="out: got memory that qkv uses too"):
        check(qkv=qkv, out=out)


def test_output_is_made_by_the_library_of_the_first_array(
    machine: tuple[FakeCuda, FakeTorch],
) -> None:
    (out,) = check(out=None, num_rows=5).outputs
    assert (out.shape, str(out.dtype)) == ((5, 2, 576), "torch.float8_e4m3fn")
    assert machine[1].allocated == [(out, None)]


def test_output_is_not_made_for_other_libraries(machine: tuple[FakeCuda, FakeTorch]) -> None:
    machine[0].memory[0x5000] = 0
    with pytest.raises(ArgumentError, match="out: got nothing; allowed is an array"):
        check(qkv=Interface((8, 2112), "<u2", 0x5000), out=None)


def test_libraries_mix(machine: tuple[FakeCuda, FakeTorch]) -> None:
    machine[0].memory[0x5000] = 0
    call = check(slots=Interface((8,), "<i8", 0x5000), q_scale_inv=Dlpack((1,), (2, 32), 1 << 40))
    assert [library.name for library in call.libraries] == ["torch", "other", "other"]


def test_a_number_without_a_default_is_required() -> None:
    params = table()
    offset = Scalar("offset", "i64", low=0)
    arguments = Arguments(ParamTable(params.arrays, (*params.scalars, offset)))
    with pytest.raises(ArgumentError, match="offset: got None; allowed is an integer of 0 or more"):
        arguments.check(tensors())
    assert arguments.check(tensors() | {"offset": 2**40}).rows == 8
