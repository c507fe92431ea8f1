"""Decode context parallelism of two processes, a rank each: every step judged, then layers timed.

    python benchmarks/peers.py [--memory ipc] [--steps 50]

With two GPUs each rank has one, and a layer's query and tail are timed beside those without DCP;
with one they share it. Mailboxes are learnt of by CUDA IPC, or through PyTorch's symmetric memory,
which needs two GPUs. The exit code is 1 if a step was wrong.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from kgen.codegen import api, schema
from kgen.codegen.bench import timing
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.reference import dcp
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.tables import markdown
from kgen.codegen.verify import tolerance
from kgen.codegen.verify.samples import bf16, query_weights

HEADS, BATCH = 2, 4  # of the steps that are judged
SHAPES = ((8, 1), (8, 8), (8, 64))  # that are timed
LAYERS, REPLAYS = 192, 20
LIMIT = 20_000  # milliseconds of a poll

Arrays = dict[str, Any]
Exchange = Callable[[Any], Any]  # gives this rank's, takes the other's; a barrier too


def make(kernel: str, **fields: Any) -> Kernel:
    return api.kernel(schema.make(kernel, fields))


def link(rank: int, path: str) -> Connection:
    """A channel to the other rank."""
    if rank == 0:
        return Listener(path, "AF_UNIX").accept()
    end = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)
    return Client(path, "AF_UNIX")


def mailboxes(memory: str, rank: int, shape: Shape, exchange: Exchange) -> Mailboxes:
    """Connected ones, which all ranks have armed."""
    if memory == "symmetric":
        import torch.distributed as dist

        return Mailboxes.symmetric(dist.group.WORLD, shape)
    box = Mailboxes(rank, shape)
    peers = [b"", b""]
    peers[1 - rank] = exchange(box.export())
    box.connect(peers)
    barrier(exchange)
    return box


def barrier(exchange: Exchange) -> None:
    import cupy

    cupy.cuda.Device().synchronize()
    exchange(None)


def query_inputs(rank: int) -> Arrays:
    """A rank's weights and cache; nothing here is the other's."""
    rng = np.random.default_rng(rank)
    one = np.ones(1, np.float32)
    return {
        **query_weights(rng, HEADS),
        "slots": rng.permutation(64)[:BATCH].astype(np.int64),
        "cache": np.zeros((1, 64, 576), np.uint8),
        "q_scale_inv": one,
        "k_scale_inv": one,
    }


def tail_inputs(step: int, rank: int) -> Arrays:
    """What a rank brings to dcp_value; either can make both's."""
    rng = np.random.default_rng((step, rank))
    return {
        "rows": bf16(rng, BATCH, 2 * HEADS, 512),
        "lse": rng.standard_normal((BATCH, 2 * HEADS)).astype(np.float32) * 5,
        "local_lengths": rng.integers(-1, 4, BATCH).astype(np.int32),
        "w_uv": bf16(np.random.default_rng(rank), HEADS, 128, 512, scale=0.05),
        "gate": bf16(rng, BATCH, HEADS * 128),
        "lengths": np.random.default_rng(step).integers(0, 4, BATCH).astype(np.int32),
    }


def judged(rank: int, memory: str, steps: int, exchange: Exchange) -> None:
    """Query, a look at the mailbox, dcp_value: bit for bit, and by one BF16 step."""
    import cupy

    fields = {"heads": HEADS, "batch": BATCH}
    ranks = fields | {"dcp": 2, "watchdog": LIMIT}
    scheme = "rows" if BATCH <= 8 else "ksplit"  # what ranks use: the same bits
    alone = make("query", **fields, scheme=scheme)
    sent = make("query", **ranks, transport="unicast")
    tail = make("dcp_value", **ranks)
    box = mailboxes(memory, rank, Shape(2, HEADS, BATCH), exchange)
    own = {name: cupy.asarray(array) for name, array in query_inputs(rank).items()}
    for step in range(steps):
        parity = step % 2
        qkv = cupy.asarray(bf16(np.random.default_rng(step), BATCH, 2112))
        mine = alone(qkv, **own).get()
        both = [mine, exchange(mine)]
        sent(qkv, **own, **box.arguments(sent, parity))
        got = box.view("mailbox", parity).get()
        np.testing.assert_array_equal(got, np.concatenate(both[:: 1 - 2 * rank], axis=1))
        inputs = [tail_inputs(step, each) for each in range(2)]
        given = {name: cupy.asarray(array) for name, array in inputs[rank].items()}
        out = tail(**given, **box.arguments(tail, parity)).get()
        held: Any = ([each[name] for each in inputs] for name in ("rows", "lse", "local_lengths"))
        mine = (inputs[rank][name] for name in ("w_uv", "gate", "lengths"))
        verdict = tolerance.close(out, dcp.dcp_value(*held, *mine, rank=rank))
        assert verdict.right, f"step {step}, rank {rank}: {verdict}"
    barrier(exchange)
    if missing := box.overdue():
        sys.exit(str(missing))
    box.close()


def graph_of(kernels: Sequence[Any], box: Mailboxes | None, stream: Any) -> tuple[Any, Any]:
    """Layers of a query and its tail, over cold weights; and what must live as long."""
    import cupy

    steps = [
        [
            timing.bound_sets(kernel, box.arguments(kernel, parity) if box else {})
            for kernel in kernels
        ]
        for parity in range(2)
    ]
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    for layer in range(LAYERS):
        for turns in steps[layer % 2]:
            turns[layer // 2 % len(turns)](stream)
    return stream.end_capture(), steps


def layer_time(kernels: Sequence[Any], box: Mailboxes | None, exchange: Exchange) -> float:
    """Microseconds a layer on this rank: the median."""
    import cupy

    stream, times = cupy.cuda.Stream(non_blocking=True), []
    graph, _held = graph_of(kernels, box, stream)
    for _ in range(timing.WARM_UPS + REPLAYS):
        barrier(exchange)
        times.append(1e3 * timing.replay(graph, stream) / LAYERS)
    return statistics.median(times[timing.WARM_UPS :])


def timed(rank: int, memory: str, exchange: Exchange) -> None:
    """Print the table; both ranks take part."""
    head, rows = ("shape", "query, value", "query with dcp, dcp_value"), []
    for heads, batch in SHAPES:
        fields = {"heads": heads, "batch": batch}
        ranks = fields | {"dcp": 2}
        without = [make("query", **fields), make("value", **fields)]
        within = [make("query", **ranks, transport="unicast"), make("dcp_value", **ranks)]
        times = [layer_time(without, None, exchange)]
        box = mailboxes(memory, rank, Shape(2, heads, batch), exchange)
        times.append(layer_time(within, box, exchange))
        barrier(exchange)
        box.close()
        rows.append((f"{heads}x{batch}", *(f"{time:.2f}" for time in times)))
    if rank == 0:
        print(f"{timing.machine()}; two GPUs, {memory}; µs a layer's query and tail\n")
        print(markdown(head, rows))


def worker(rank: int, path: str, memory: str, steps: int) -> None:
    """One rank."""
    import cupy

    gpus = cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(rank % gpus).use()
    channel = link(rank, path)

    def exchange(mine: Any) -> Any:
        channel.send(mine)
        return channel.recv()

    if memory == "symmetric":
        import torch
        import torch.distributed as dist

        torch.cuda.set_device(rank % gpus)
        dist.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank, world_size=2)
    judged(rank, memory, steps, exchange)
    where = f"rank {rank} of 2, GPU {rank % gpus} of {gpus}"
    print(f"{where}, {memory}: {steps} steps right\n", end="", flush=True)  # in one piece
    if gpus > 1:
        timed(rank, memory, exchange)


def main() -> None:
    """Start both ranks, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", choices=("ipc", "symmetric"), default="ipc")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return worker(args.rank, args.link, args.memory, args.steps)
    with tempfile.TemporaryDirectory() as folder:
        more = ("--memory", args.memory, "--steps", str(args.steps))
        link = ("--link", str(Path(folder) / "link"))
        ranks = [
            subprocess.Popen((sys.executable, __file__, *more, *link, "--rank", str(rank)))
            for rank in range(2)
        ]
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(0.1)
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()  # the other one has failed
        sys.exit(any(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
