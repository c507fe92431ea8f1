"""Mailboxes without a GPU: NumPy's memory, a fake CuPy for IPC, a fake of symmetric memory."""

from __future__ import annotations

import os
import struct
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.codegen import schema
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import DISABLE_MULTICAST, Mailboxes
from kgen.codegen.emulator.kernel import Held, poisoned
from kgen.codegen.errors import ArgumentError, ConfigError
from kgen.codegen.plan import plan
from kgen.codegen.runtime.arguments import Arguments

SHAPE = Shape(ranks=2, heads=3, capacity=5)


def memory(size: int) -> np.ndarray:
    return poisoned((size,), 1)


def numpy_boxes(rank: int = 0, shape: Shape = SHAPE) -> Mailboxes:
    return Mailboxes(rank, shape, memory=memory(shape.nbytes), library=np)


def connected(shape: Shape = SHAPE, multicast: int = 0) -> list[Mailboxes]:
    boxes = [numpy_boxes(rank, shape) for rank in range(shape.ranks)]
    for box in boxes:
        box.connect([peer.address for peer in boxes], multicast=multicast)
    return boxes


def planned(slug: str) -> Any:
    return SimpleNamespace(plan=plan(schema.parse_slug(slug)))


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_public_as_kgen_dcp() -> None:
    assert kgen.dcp.Mailboxes is Mailboxes and kgen.dcp.Shape is Shape
    assert {"dcp", "dcp_value", "query_wait"} <= set(dir(kgen))


@pytest.mark.parametrize(
    ("shape", "query"),
    [
        (SHAPE, ("uint8", (5, 6, 576))),
        (Shape(4, 2, 7, q_heads=64, bf16=True), ("uint16", (7, 64, 576))),
    ],
)
def test_views_are_of_the_kernels_shapes_and_full_of_sentinels(
    shape: Shape, query: tuple[str, tuple[int, ...]]
) -> None:
    box = numpy_boxes(shape=shape)
    for parity in (0, 1):
        mailbox, partials, lse = (
            box.view(name, parity) for name in ("mailbox", "partials", "lse_box")
        )
        assert (mailbox.dtype, mailbox.shape) == query
        assert (mailbox.view(np.uint8) == 0xFF).all()
        assert partials.shape == (shape.ranks, shape.capacity, shape.heads, 512)
        assert (partials.view(np.uint32) == 0x80000000).all()
        assert (lse.dtype, lse.shape) == (np.float32, partials.shape[:3])
        assert (lse.view(np.uint32) == 0xFFFFFFFF).all()


def test_mailboxes_do_not_overlap_and_are_aligned() -> None:
    box = numpy_boxes()
    spans = []
    for name in ("mailbox", "partials", "lse_box"):
        for parity in (0, 1):
            view = box.view(name, parity)
            assert address(view) % 128 == 0
            spans.append((address(view), address(view) + view.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[0][0] >= box.address and spans[-1][1] <= box.address + SHAPE.nbytes


@pytest.mark.parametrize("parity", [0, 1])
def test_tables_are_the_addresses_of_every_ranks_views(parity: int) -> None:
    boxes = connected()
    for box in boxes:
        query = box.arguments(planned("query-h3-b5-dcp2-transport.unicast"), parity)
        assert list(query) == ["peers", "mailbox", "rank"] and query["rank"] == box.rank
        value = box.arguments(planned("dcp_value-h3-b5-dcp2"), parity)
        pairs = {"partial_peers": "partials", "lse_peers": "lse_box"}
        assert set(value) == {"rank", "mailbox", *pairs, *pairs.values()}
        for table, name in ({"peers": "mailbox"} | pairs).items():
            found = (query | value)[table]
            assert found.dtype == np.int64
            assert found.tolist() == [address(peer.view(name, parity)) for peer in boxes]
        assert address(value["partials"]) == address(box.view("partials", parity))


def test_only_what_a_kernel_takes_is_handed_out() -> None:
    box = connected(multicast=1 << 40)[1]
    second = (1 << 40) + SHAPE.place("mailbox", 1)
    taken = box.arguments(planned("query-h3-b5-dcp2"), 1)
    assert set(taken) == {"mailbox", "multicast", "rank"} and taken["multicast"] == second
    assert set(box.arguments(planned("query-h3-b5-dcp2-no_poll"), 1)) == {"multicast", "rank"}
    assert list(numpy_boxes().arguments(planned("query_wait-h3-b4-dcp2"), 0)) == ["mailbox"]


def test_multicast_is_the_callers() -> None:
    with pytest.raises(ArgumentError, match="multicast: not known yet; connect"):
        connected()[0].arguments(planned("query-h3-b5-dcp2"), 0)
    with pytest.raises(ArgumentError, match="peers: not known yet"):
        numpy_boxes().arguments(planned("query-h3-b5-dcp2-transport.unicast"), 0)


def test_arm_refills_one_parity_or_both() -> None:
    box = numpy_boxes()
    for parity in (0, 1):
        box.view("mailbox", parity)[...] = 1
        box.view("partials", parity)[...] = 1
    box.arm(1)
    assert (box.view("mailbox", 0) == 1).all() and (box.view("mailbox", 1) == 0xFF).all()
    assert (box.view("partials", 1).view(np.uint32) == 0x80000000).all()
    box.arm()
    assert (box.view("mailbox", 0) == 0xFF).all()


@pytest.mark.parametrize(
    ("slug", "message"),
    [
        ("query-h2-b5-dcp2", "heads: .* has 2, the mailboxes have 3"),
        ("query-h3-b5-dcp4", "dcp: .* has 4, the mailboxes have 2"),
        ("query-h3-b6-dcp2", "batch: .* more rows than capacity 5"),
        ("query-h3-b5-dcp2-dsa", "bf16: .* has True, the mailboxes have False"),
        ("query_wait-h3-b5-dcp2-bf16", "bf16: "),
        ("dcp_value-h3-b5-dcp2-q_heads64", "q_heads: .* has 64, the mailboxes have 6"),
        ("query-h3-b5", "kernel: got query-h3-b5; allowed is one with dcp"),
        ("value-h3-b5", "kernel: got value-h3-b5"),
    ],
)
def test_kernels_of_another_shape_are_refused(slug: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        connected()[0].arguments(planned(slug), 0)


def test_fp8_dsa_takes_fp8_mailboxes() -> None:
    assert connected()[0].arguments(planned("query-h3-b5-dcp2-dsa-fp8-transport.unicast"), 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 1}, "ranks: got 1; allowed is an integer from 2 to 64"),
        ({"heads": 0}, "heads: got 0"),
        ({"heads": True}, "heads: got True"),
        ({"capacity": 0}, "capacity: got 0"),
        ({"q_heads": 5}, r"q_heads: got 5; is 0 or at least ranks\*heads"),
    ],
)
def test_wrong_shapes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Shape(**{"ranks": 2, "heads": 3, "capacity": 5} | fields)


def test_wrong_memory_ranks_parities_and_peers() -> None:
    with pytest.raises(ConfigError, match="rank: got 2; allowed is an integer from 0 to 1"):
        numpy_boxes(2)
    with pytest.raises(ArgumentError, match=r"memory: got .* allowed is at least"):
        Mailboxes(0, SHAPE, memory=memory(SHAPE.nbytes - 1), library=np)
    with pytest.raises(ArgumentError, match="128-byte aligned"):
        Mailboxes(0, SHAPE, memory=memory(SHAPE.nbytes + 8)[8:], library=np)
    box = numpy_boxes()
    with pytest.raises(ArgumentError, match="parity: got 2; allowed are 0 and 1"):
        box.view("mailbox", 2)
    with pytest.raises(ArgumentError, match="peers: got 3; allowed is one a rank, 2"):
        box.connect([0, 0, 0])
    with pytest.raises(ArgumentError, match=r"peers\[1\]: got 0x7; allowed is a multiple of 128"):
        box.connect([0, 7])
    with pytest.raises(ArgumentError, match="multicast: got 0x7"):
        box.connect([0, 256], multicast=7)
    with pytest.raises(ArgumentError, match="export: the memory is the caller's"):
        box.export()


class FakeCupy(ModuleType):
    """CuPy as Mailboxes see it, with NumPy's memory; IPC handles are 64 bytes of an address."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.open: list[int] = []
        self.sizes: list[int] = []
        runtime = SimpleNamespace(
            ipcGetMemHandle=lambda pointer: pointer.to_bytes(64, "little"),
            ipcOpenMemHandle=self._open,
            ipcCloseMemHandle=self._close,
        )
        pointer = SimpleNamespace
        self.cuda = SimpleNamespace(
            Memory=memory,
            MemoryPointer=lambda m, o: pointer(memory=m, offset=o),
            runtime=runtime,
            alloc_pinned_memory=bytearray,
            get_current_stream=lambda: SimpleNamespace(synchronize=self._settle),
        )
        self.settled = 0
        self.asarray = np.asarray

    def ndarray(self, size: int, dtype: Any, pointer: Any) -> np.ndarray:
        self.sizes.append(size)
        assert len(pointer.memory) == size and pointer.offset == 0
        return pointer.memory  # type: ignore[no-any-return]

    def _settle(self) -> None:
        self.settled += 1

    def _open(self, handle: bytes) -> int:
        assert len(handle) == 64
        self.open.append(int.from_bytes(handle, "little"))
        return self.open[-1]

    def _close(self, pointer: int) -> None:
        self.open.remove(pointer)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def test_ipc_handles_over_any_channel(cupy: FakeCupy) -> None:
    boxes = [Mailboxes(rank, SHAPE) for rank in range(2)]
    assert all(size >= SHAPE.nbytes and size % (2 << 20) == 0 for size in cupy.sizes)
    assert cupy.settled == 2  # armed before anyone knows where they are
    channel = [box.export() for box in boxes]
    boxes[0].connect(channel)
    assert cupy.open == [boxes[1].address]  # not its own
    peers = boxes[0].arguments(planned("query-h3-b5-dcp2-transport.unicast"), 0)["peers"]
    assert peers.tolist() == [address(box.view("mailbox", 0)) for box in boxes]
    boxes[0].connect(channel)
    assert cupy.open == [boxes[1].address]  # the first one was closed
    boxes[0].close()
    assert cupy.open == []
    with pytest.raises(ArgumentError, match="peers: not known yet"):
        boxes[0].arguments(planned("query-h3-b5-dcp2-transport.unicast"), 0)


def test_ranks_of_one_process_know_one_another(cupy: FakeCupy) -> None:
    boxes = Mailboxes.of_ranks(SHAPE)
    assert [box.rank for box in boxes] == [0, 1] and cupy.open == []
    for box in boxes:
        peers = box.arguments(planned("query-h3-b5-dcp2-transport.unicast"), 1)["peers"]
        assert peers.tolist() == [address(each.view("mailbox", 1)) for each in boxes]


def test_peers_of_another_shape_are_refused(cupy: FakeCupy) -> None:
    other = Mailboxes(1, Shape(2, 3, 6))
    with pytest.raises(ArgumentError, match=r"peers\[1\]: its mailboxes have another shape"):
        Mailboxes(0, SHAPE).connect([b"", other.export()])
    assert cupy.open == []


def fake_torch(monkeypatch: pytest.MonkeyPatch, ranks: int, seen: list[Any]) -> None:
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    symmetric = ModuleType("torch.distributed._symmetric_memory")
    torch.__dict__.update(
        uint8=np.uint8,
        device=lambda *kind: kind,
        cuda=SimpleNamespace(current_device=lambda: 0, synchronize=lambda: seen.append("sync")),
        distributed=distributed,
    )

    def rendezvous(array: np.ndarray, group: str) -> Any:
        seen.extend([group, os.environ.get(DISABLE_MULTICAST)])
        peers = [0x1000_0000, address(array)]
        barrier = lambda: seen.append("barrier")  # noqa: E731
        facts = {"world_size": ranks, "rank": 1, "buffer_ptrs": peers, "multicast_ptr": 1 << 40}
        return SimpleNamespace(barrier=barrier, **facts)

    symmetric.__dict__.update(empty=lambda size, dtype, device: memory(size), rendezvous=rendezvous)
    distributed.__dict__["_symmetric_memory"] = symmetric
    for module in (torch, distributed, symmetric):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("before", [None, "0"])
def test_symmetric_memory(
    monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy, before: str | None
) -> None:
    """Connected to all ranks after a barrier; multicast is neither set up nor taken."""
    monkeypatch.delenv(DISABLE_MULTICAST, raising=False)
    if before is not None:
        monkeypatch.setenv(DISABLE_MULTICAST, before)
    seen: list[Any] = []
    fake_torch(monkeypatch, 2, seen)
    box = Mailboxes.symmetric("group", SHAPE)
    assert seen == ["group", "1", "sync", "barrier"]
    assert os.environ.get(DISABLE_MULTICAST) == before
    assert box.rank == 1
    peers = box.arguments(planned("query-h3-b5-dcp2-transport.unicast"), 1)["peers"].tolist()
    place = SHAPE.place("mailbox", 1)
    assert peers == [0x1000_0000 + place, box.address + place]
    with pytest.raises(ArgumentError, match="multicast: not known yet"):
        box.arguments(planned("query-h3-b5-dcp2"), 1)


def test_symmetric_memory_of_another_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy
) -> None:
    fake_torch(monkeypatch, 4, [])
    with pytest.raises(ConfigError, match="group: got 4; shape has 2 ranks"):
        Mailboxes.symmetric("group", SHAPE)


def others(made: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Arrays of the right shapes for all arguments that are not of mailboxes."""
    found = {}
    for array in made.params.arrays:
        if array.name not in known:
            rows = made.config.batch
            shape = [
                rows // a.per if a.rows else 1 if a.extent < 0 else a.extent for a in array.axes
            ]
            kind = {"f32": "f4", "i32": "i4", "i64": "i8"}.get(array.dtype, f"u{array.itemsize}")
            found[array.name] = poisoned(tuple(shape), array.itemsize).view(kind)
    return found


@pytest.mark.parametrize(
    "slug",
    [
        "query-h3-b5-dcp2-transport.unicast",
        "query-h3-b5-dcp2",
        "query-h3-b5-dcp2-no_poll",
        "query_wait-h3-b5-dcp2",
        "dcp_value-h3-b5-dcp2",
        "dcp_value-h3-b4-q2-dcp2-bf16-q_heads64",
    ],
)
def test_what_is_handed_out_passes_the_checks_of_a_call(slug: str) -> None:
    made = planned(slug)
    config = made.plan.config
    wide, rows = getattr(config, "bf16", False), getattr(config, "q_heads", 0)
    box = connected(Shape(2, 3, 6, q_heads=rows, bf16=wide), multicast=1 << 40)[1]
    known = box.arguments(made, 1)
    given = {
        name: value if isinstance(value, int) else Held(value)
        for name, value in (known | others(made.plan, known)).items()
    }
    call = Arguments(made.plan.params).check(given)
    table = {field.name: i for i, field in enumerate(made.plan.params.fields)}
    packed = struct.unpack(made.plan.params.format, call.packed)
    for name, value in known.items():
        assert packed[table[name]] == (value if isinstance(value, int) else address(value)), name
    if "capacity" in table:
        assert packed[table["capacity"]] == packed[table["lse_capacity"]] == 6


@pytest.mark.nvrtc
@pytest.mark.parametrize("make", [kgen.query_wait, kgen.dcp_value])
def test_kernels_are_made_without_a_gpu(make: Any) -> None:
    made = make(heads=2, batch=3, dcp=2)
    assert made.config.kernel == make.__name__ and "mailbox" in made.plan.params.names
    assert make(heads=2, batch=3, dcp=2) is made
