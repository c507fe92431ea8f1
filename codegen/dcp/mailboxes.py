"""The mailboxes of decode context parallelism: memory that the ranks write and poll, one rank's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import ArgumentError, ConfigError
from ..plan.mailbox import Mailed, mailbox_heads, query_dtype
from ..schema import Config
from .layout import ALIGN, PARITIES, Shape
from .watchdog import Overdue, Report

WHOLE = 2 << 20  # bytes that IPC shares at least: what else lay there, peers could read
DISABLE_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
TABLES = {"peers": "mailbox", "partial_peers": "partials", "lse_peers": "lse_box"}
NAMES = frozenset(("rank", "multicast", "report", *TABLES, *TABLES.values()))  # of arguments


class Mailboxes:
    """One rank's query, partial and LSE mailboxes, two of each: layers take turns (``parity``).

    They are full of sentinels once this returns. ``dcp_value`` refills what was read, so that a
    mailbox is armed again two layers later; :meth:`arm` is for what a launch that never came left
    behind.

    Parameters
    ----------
    rank
        Of this GPU among the ranks.
    shape
        The same on every rank.
    memory
        At least ``shape.nbytes`` bytes on this GPU that peers can write, 128-byte aligned: a uint8
        array of CuPy, PyTorch or ``__cuda_array_interface__``. Where None it is allocated, by CuPy.
    library
        In the place of ``cupy``; what tests without a GPU hand in.

    Examples
    --------
    Ranks on one GPU, each on a stream of its own, with ``release`` off:

    >>> shape = kgen.dcp.Shape(ranks=2, heads=8, capacity=16)
    >>> boxes = kgen.dcp.Mailboxes.of_ranks(shape)
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
        self._report = Report(self._xp)
        size = int(self._bytes.nbytes)
        if self._bytes.dtype != np.uint8 or size < shape.nbytes or self.address % ALIGN:
            got = f"{size} bytes of {self._bytes.dtype} at {self.address:#x}"
            wanted = f"{shape.nbytes} bytes of uint8, {ALIGN}-byte aligned"
            raise ArgumentError(f"memory: got {got}; allowed is at least {wanted}")
        self.arm()
        if cuda := getattr(self._xp, "cuda", None):
            cuda.get_current_stream().synchronize()  # peers may write once they know the address

    @classmethod
    def of_ranks(cls, shape: Shape) -> list[Mailboxes]:
        """Those of every rank, connected: for ranks that this process and GPU share."""
        boxes = [cls(rank, shape) for rank in range(shape.ranks)]
        for box in boxes:
            box.connect([peer.address for peer in boxes])
        return boxes

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
            raise ArgumentError(f"multicast: got {multicast:#x}; allowed is 0 or a multiple of 128")
        self.close()
        bases = [
            self.address if rank == self.rank else self._open(rank, peer)
            for rank, peer in enumerate(peers)
        ]
        self._multicast = multicast
        for parity in range(PARITIES):
            for name, box in TABLES.items():
                table = np.array([base + shape.place(box, parity) for base in bases], np.int64)
                self._peers[name, parity] = self._xp.asarray(table)

    def _open(self, rank: int, peer: int | bytes) -> int:
        if isinstance(peer, int):
            if peer <= 0 or peer % ALIGN:
                raise ArgumentError(f"peers[{rank}]: got {peer:#x}; allowed is a multiple of 128")
            return peer
        facts = self.shape.facts
        if peer[: len(facts)] != facts:
            raise ArgumentError(
                f"peers[{rank}]: its mailboxes have another shape than {self.shape}"
            )
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
        box = self.shape.box(name)
        start = self.shape.place(name, _parity(parity))
        return self._bytes[start : start + box.nbytes].view(box.dtype).reshape(box.shape)

    def arguments(self, kernel: Any, parity: int) -> dict[str, Any]:
        """What a query, query_wait or dcp_value ``kernel`` takes of the mailboxes, by name.

        Raises
        ------
        ArgumentError
            When the kernel has another shape, or :meth:`connect` has not given what it needs.
        """
        self._check(kernel.plan.config)
        known: dict[str, Any] = {"rank": self.rank, "report": self._report.address}
        for name, box in TABLES.items():
            known[box] = self.view(box, parity)
            if self._peers:
                known[name] = self._peers[name, parity]
        if self._multicast:
            known["multicast"] = self._multicast + self.shape.place("mailbox", parity)
        taken = [name for name in kernel.plan.params.names if name in NAMES]
        missing = [name for name in taken if name not in known]
        if missing:
            raise ArgumentError(f"{missing[0]}: not known yet; connect() gives it")
        return {name: known[name] for name in taken}

    def _check(self, config: Config) -> None:
        if not isinstance(config, Mailed) or not config.dcp:
            raise ArgumentError(f"kernel: got {config.slug}; allowed is one with dcp")
        shape = self.shape
        rows, wide = mailbox_heads(config), query_dtype(config) == "bf16"
        theirs = {"dcp": config.dcp, "heads": config.heads, "q_heads": rows, "bf16": wide}
        ours = (shape.ranks, shape.heads, shape.rows, shape.bf16)
        for (name, value), mine in zip(theirs.items(), ours, strict=True):
            if value != mine:
                raise ArgumentError(f"{name}: {config.slug} has {value}, the mailboxes have {mine}")
        if config.batch > shape.capacity:
            raise ArgumentError(
                f"batch: {config.slug} has more rows than capacity {shape.capacity}"
            )

    def overdue(self) -> Overdue | None:
        """The word that a kernel with ``watchdog`` waited for in vain, before it trapped.

        The trap ends the CUDA context: what synchronises next raises, and nothing on the GPU can be
        used any more. This reads memory of the host.
        """
        return self._report.read(self.rank)

    def arm(self, parity: int | None = None) -> None:
        """Fill the mailboxes, of one parity or both, with sentinels, on the current stream.

        No rank may write to them, or poll them, meanwhile.
        """
        for each in range(PARITIES) if parity is None else (_parity(parity),):
            for box in self.shape.boxes:
                self.view(box.name, each).reshape(-1).view(np.uint32)[...] = box.sentinel


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
