"""The mailboxes of decode context parallelism: memory that the ranks write and poll, one rank's.

Public as ``kgen.dcp``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .errors import ArgumentError, ConfigError

COLUMNS, LATENT = 576, 512
PARITIES = 2
QUERY, PARTIAL = 0xFFFFFFFF, 0x80000000  # sentinels, as 32-bit words; QUERY is that of LSEs too
ALIGN = 256  # bytes, of each mailbox
WHOLE = 2 << 20  # bytes that IPC shares at least: what else lay there, peers could read
DISABLE_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


@dataclass(frozen=True)
class Shape:
    """What the mailboxes of every rank have in common.

    Parameters
    ----------
    ranks, heads
        Decode context parallel ranks, and query heads of each.
    capacity
        Token rows that a mailbox holds: the largest ``batch`` of the kernels.
    q_heads
        Rows of a token in the query mailbox, as the kernels' ``q_heads``; 0 is ranks * heads.
    bf16
        BF16 queries (``dsa`` without ``fp8``), else FP8.
    """

    ranks: int
    heads: int
    capacity: int
    q_heads: int = 0
    bf16: bool = False

    def __post_init__(self) -> None:
        bounds = {"ranks": (2, 64), "heads": (1, 128), "capacity": (1, 1 << 20)}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(name, value, f"allowed is an integer from {low} to {high}")
        if self.q_heads and self.q_heads < self.ranks * self.heads:
            raise ConfigError("q_heads", self.q_heads, "is 0 or at least ranks*heads")

    @property
    def rows(self) -> int:
        """Rows of a token in the query mailbox."""
        return self.q_heads or self.ranks * self.heads

    @property
    def boxes(self) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
        """Argument name, dtype, shape and sentinel of each kind of mailbox."""
        query = ("u2" if self.bf16 else "u1", (self.capacity, self.rows, COLUMNS))
        lse = (self.ranks, self.capacity, self.heads)
        return (
            ("mailbox", *query, QUERY),
            ("partials", "u2", (*lse, LATENT), PARTIAL),
            ("lse_box", "f4", lse, QUERY),
        )

    def place(self, name: str, parity: int) -> int:
        """Bytes from the start of a rank's memory to a mailbox."""
        start = 0
        for other, dtype, shape, _ in self.boxes:
            size = -(-prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN
            if other == name:
                return start + parity * size
            start += PARITIES * size
        return start

    @property
    def nbytes(self) -> int:
        """Bytes of a rank's memory, all mailboxes of both parities."""
        return self.place("", 0)

    @property
    def facts(self) -> bytes:
        """What peers compare before they write."""
        numbers = (self.ranks, self.heads, self.capacity, self.rows, self.bf16)
        return struct.pack("<5q", *numbers)


class Mailboxes:
    """One rank's query, partial and LSE mailboxes, two of each: layers take turns (``parity``).

    They are filled with sentinels here. ``dcp_value`` refills what was read, so that a mailbox is
    armed again two layers later; :meth:`arm` is for what a launch that never came left behind.

    Parameters
    ----------
    rank
        Of this GPU among the ranks.
    shape
        The same on every rank.
    memory
        At least ``shape.nbytes`` bytes on this GPU that peers can write, 256-byte aligned: a uint8
        array of CuPy, PyTorch or ``__cuda_array_interface__``. Where None it is allocated, by CuPy.
    library
        In the place of ``cupy``; what tests without a GPU hand in.

    Examples
    --------
    Ranks on one GPU, each on a stream of its own, with ``release`` off:

    >>> shape = kgen.dcp.Shape(ranks=2, heads=8, capacity=16)
    >>> boxes = [kgen.dcp.Mailboxes(rank, shape) for rank in range(2)]
    >>> for box in boxes:
    ...     box.connect([peer.address for peer in boxes])
    >>> out = query(qkv, ..., **boxes[0].arguments(query, parity=layer % 2))
    """

    def __init__(self, rank: int, shape: Shape, *, memory: Any = None, library: Any = None) -> None:
        if type(rank) is not int or not 0 <= rank < shape.ranks:
            raise ConfigError("rank", rank, f"allowed is an integer from 0 to {shape.ranks - 1}")
        self.rank, self.shape = rank, shape
        self._xp = library or _cupy()
        self._own = memory is None
        self._memory = _allocate(self._xp, shape.nbytes) if memory is None else memory
        self._bytes = self._xp.asarray(self._memory).reshape(-1)
        self.address = _address(self._bytes)
        self._opened: list[int] = []
        self._peers: dict[tuple[str, int], Any] = {}
        self._multicast = 0
        size = int(self._bytes.nbytes)
        if self._bytes.dtype != np.uint8 or size < shape.nbytes or self.address % ALIGN:
            got = f"{size} bytes of {self._bytes.dtype} at {self.address:#x}"
            wanted = f"{shape.nbytes} bytes of uint8, {ALIGN}-byte aligned"
            raise ArgumentError(f"memory: got {got}; allowed is at least {wanted}")
        self.arm()

    @classmethod
    def symmetric(cls, group: Any, shape: Shape) -> Mailboxes:
        """Mailboxes in PyTorch's symmetric memory, connected; every rank of ``group`` calls it.

        PyTorch's own set-up of multicast is switched off meanwhile. To use multicast, make the
        memory and the rendezvous yourself, and hand both to ``Mailboxes`` and :meth:`connect`.
        """
        import torch
        import torch.distributed._symmetric_memory as symmetric_memory

        device = torch.device("cuda", torch.cuda.current_device())
        memory = symmetric_memory.empty(shape.nbytes, dtype=torch.uint8, device=device)
        with _without_multicast():
            handle = symmetric_memory.rendezvous(memory, group)
        if handle.world_size != shape.ranks:
            raise ConfigError("group", handle.world_size, f"shape has {shape.ranks} ranks")
        made = cls(handle.rank, shape, memory=memory)
        torch.cuda.synchronize()
        handle.barrier()  # no rank writes before all are armed
        made.connect(list(handle.buffer_ptrs))
        return made

    def export(self) -> bytes:
        """What :meth:`connect` of another process takes to reach this memory: a CUDA IPC handle.

        Only for memory that was allocated here: an IPC handle is of a whole allocation.
        """
        if not self._own:
            raise ArgumentError("export: the memory is the caller's, who shares it and its address")
        handle: bytes = self._xp.cuda.runtime.ipcGetMemHandle(self.address)
        return self.shape.facts + handle

    def connect(self, peers: Sequence[int | bytes], *, multicast: int = 0) -> None:
        """Learn where the mailboxes of all ranks are.

        All ranks must have made theirs before any launch writes to them.

        Parameters
        ----------
        peers
            By rank: the address, on this GPU, of the rank's memory, or what its :meth:`export`
            gave. This rank's own is not looked at.
        multicast
            The multicast address of the memory, for kernels with ``transport`` multicast; 0: none.
            The caller has made it; nothing here sets up multicast.
        """
        shape = self.shape
        if len(peers) != shape.ranks:
            raise ArgumentError(f"peers: got {len(peers)}; allowed is one a rank, {shape.ranks}")
        if multicast % ALIGN:
            raise ArgumentError(f"multicast: got {multicast:#x}; allowed is 0 or a multiple of 256")
        self.close()
        bases = [
            self.address if rank == self.rank else self._open(rank, peer)
            for rank, peer in enumerate(peers)
        ]
        self._multicast = multicast
        for parity in range(PARITIES):
            for name, *_ in shape.boxes:
                table = np.array([base + shape.place(name, parity) for base in bases], np.int64)
                self._peers[name, parity] = self._xp.asarray(table)

    def _open(self, rank: int, peer: int | bytes) -> int:
        if isinstance(peer, int):
            if peer <= 0 or peer % ALIGN:
                raise ArgumentError(f"peers[{rank}]: got {peer:#x}; allowed is a multiple of 256")
            return peer
        facts = self.shape.facts
        if peer[: len(facts)] != facts:
            raise ArgumentError(f"peers[{rank}]: its mailboxes have another shape than {self.shape}")
        opened: int = self._xp.cuda.runtime.ipcOpenMemHandle(peer[len(facts) :])
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Let go of peers' memory; no launch that writes to it may still run."""
        while self._opened:
            self._xp.cuda.runtime.ipcCloseMemHandle(self._opened.pop())
        self._peers.clear()
        self._multicast = 0

    def view(self, name: str, parity: int) -> Any:
        """The mailbox ``name`` (mailbox, partials or lse_box) of ``parity``, as an array."""
        dtype, shape = next(box[1:3] for box in self.shape.boxes if box[0] == name)
        start = self.shape.place(name, _parity(parity))
        stop = start + prod(shape) * np.dtype(dtype).itemsize
        return self._bytes[start:stop].view(dtype).reshape(shape)

    def arguments(self, kernel: Any, parity: int) -> dict[str, Any]:
        """What a query, query_wait or dcp_value ``kernel`` takes of the mailboxes, by name.

        Raises
        ------
        ArgumentError
            When the kernel has another shape, or :meth:`connect` has not given what it needs.
        """
        self._check(kernel.plan.config)
        known = {"rank": self.rank}
        known |= {name: self.view(name, parity) for name, *_ in self.shape.boxes}
        if self._peers:
            tables = {"peers": "mailbox", "partial_peers": "partials", "lse_peers": "lse_box"}
            known |= {name: self._peers[box, parity] for name, box in tables.items()}
        if self._multicast:
            known["multicast"] = self._multicast + self.shape.place("mailbox", parity)
        taken = [name for name in kernel.plan.params.names if name in NAMES]
        missing = [name for name in taken if name not in known]
        if missing:
            raise ArgumentError(f"{missing[0]}: not known yet; connect() gives it")
        return {name: known[name] for name in taken}

    def _check(self, config: Any) -> None:
        shape = self.shape
        rows = getattr(config, "q_heads", 0) or getattr(config, "dcp", 0) * shape.heads
        wide = getattr(config, "bf16", getattr(config, "dsa", False) and not config.fp8)
        pairs = (
            ("dcp", getattr(config, "dcp", 0), shape.ranks),
            ("heads", getattr(config, "heads", 0), shape.heads),
            ("q_heads", rows, shape.rows),
            ("bf16", wide, shape.bf16),
        )
        for name, theirs, ours in pairs:
            if theirs != ours:
                raise ArgumentError(f"{name}: {config.slug} has {theirs}, the mailboxes have {ours}")
        if config.batch > shape.capacity:
            raise ArgumentError(f"batch: {config.slug} has more rows than capacity {shape.capacity}")

    def arm(self, parity: int | None = None) -> None:
        """Fill the mailboxes, of one parity or both, with sentinels, on the current stream.

        No rank may write to them, or poll them, meanwhile.
        """
        for each in range(PARITIES) if parity is None else (_parity(parity),):
            for name, *_, sentinel in self.shape.boxes:
                self.view(name, each).reshape(-1).view(np.uint32)[...] = sentinel


NAMES = frozenset(
    ("rank", "multicast", "peers", "partial_peers", "lse_peers", "mailbox", "partials", "lse_box")
)  # arguments of kernels that are of mailboxes


def _parity(parity: int) -> int:
    if parity not in (0, 1):
        raise ArgumentError(f"parity: got {parity!r}; allowed are 0 and 1")
    return parity


def _cupy() -> Any:
    import cupy

    return cupy


def _allocate(library: Any, size: int) -> Any:
    """Memory of its own allocation, not of a pool: IPC shares whole ones."""
    size = -(-size // WHOLE) * WHOLE
    memory = library.cuda.Memory(size)
    return library.ndarray(size, np.uint8, library.cuda.MemoryPointer(memory, 0))


def _address(array: Any) -> int:
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


@contextmanager
def _without_multicast() -> Iterator[None]:
    before = os.environ.get(DISABLE_MULTICAST)
    os.environ[DISABLE_MULTICAST] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DISABLE_MULTICAST]
        else:
            os.environ[DISABLE_MULTICAST] = before
