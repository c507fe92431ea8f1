"""Measure decode context parallelism with all ranks on the GPU here, and print it as Markdown.

    python benchmarks/dcp.py

First what fits, then times: a query's own cost of being sent (its mailbox is full, so that no poll
waits), and whole layers of two ranks, which poll one another, beside the same without DCP.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import ceil
from typing import Any

from kgen.codegen import api, schema
from kgen.codegen.bench import timing
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.errors import DeviceError
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.tables import markdown

RANKS = (2, 4, 8)
ROWS = (8, 16, 32, 64, 96, 128, 192, 256)
SHAPES = ((8, 8), (8, 64))
LAYERS, REPLAYS = 96, 30
ALONE: dict[str, Any] = {"release": False}


@cache
def make(kernel: str, **fields: Any) -> Kernel:
    return api.kernel(schema.make(kernel, fields), nvml.default_arch())


def room(batch: int, **form: bool) -> Iterator[str]:
    """By ranks on this GPU, the most heads of a polling query."""
    made = make("query", heads=1, batch=batch, dcp=2, transport="unicast", **form, **ALONE)
    fit = made.max_active_clusters()
    tiles = ceil(batch / made.plan.tokens)
    for ranks in RANKS:
        yield str(min(128, fit // (ranks * tiles)) or "none")


def sent(heads: int, batch: int) -> Iterator[float]:
    """Microseconds of a query: alone; sent, without and with its poll; and of query_wait."""
    fields = {"heads": heads, "batch": batch}
    boxes = Mailboxes.of_ranks(Shape(2, heads, batch))
    box = boxes[0]
    box.view("mailbox", 0)[...] = 0
    ranks = {**fields, "dcp": 2}
    unicast = {**ranks, "transport": "unicast"}
    yield timing.graph_time(timing.bound_sets(make("query", **fields)), REPLAYS)
    for poll in (False, True):
        kernel = make("query", **unicast, poll=poll)
        yield timing.graph_time(timing.bound_sets(kernel, box.arguments(kernel, 0)), REPLAYS)
    kernel = make("query_wait", **ranks)
    yield timing.graph_time(timing.bound_sets(kernel, box.arguments(kernel, 0)), REPLAYS)


def layers(heads: int, batch: int, dcp: bool) -> float:
    """Microseconds of a layer's query and tail, two ranks side by side on one GPU."""
    import cupy

    fields = {"heads": heads, "batch": batch, **ALONE}
    ranks = {**fields, "dcp": 2}
    names = ("query", "dcp_value") if dcp else ("query", "value")
    unicast = {"transport": "unicast"} if dcp else {}
    kernels = [make(names[0], **(ranks if dcp else fields), **unicast)]
    kernels.append(make(names[1], **(ranks if dcp else fields)))
    boxes = Mailboxes.of_ranks(Shape(2, heads, batch))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in boxes]
    graphs, held = [], []
    for box, stream in zip(boxes, streams, strict=True):
        turns = [
            [
                timing.bound_sets(k, box.arguments(k, parity) if dcp else {}, pdl=False)
                for k in kernels
            ]
            for parity in range(2)
        ]
        held.append(turns)  # and so the arrays
        cupy.cuda.Device().synchronize()
        stream.begin_capture()
        for layer in range(LAYERS):
            for steps in turns[layer % 2]:
                steps[layer % len(steps)](stream)
        graphs.append(stream.end_capture())
    return together(graphs, streams) / LAYERS


def side_by_side(heads: int, batch: int, dcp: bool) -> str:
    try:
        return f"{layers(heads, batch, dcp):.2f}"
    except DeviceError as error:
        return f"refused, {str(error).partition(':')[0]}"


def together(graphs: Sequence[Any], streams: Sequence[Any]) -> float:
    """Microseconds from the common start of ``graphs`` to the last one's end: the median."""
    import cupy

    first, second = streams
    times = []
    for _ in range(timing.WARM_UPS + REPLAYS):
        start, other, end = (cupy.cuda.Event() for _ in range(3))
        start.record(first)
        second.wait_event(start)
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch(stream)
        other.record(second)
        first.wait_event(other)
        end.record(first)
        end.synchronize()
        times.append(1e3 * cupy.cuda.get_elapsed_time(start, end))
    return float(statistics.median(times[timing.WARM_UPS :]))


def show(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table, as soon as it is measured."""
    print(f"{markdown(head, rows)}\n", flush=True)


def main() -> None:
    """Print the tables."""
    print(f"{timing.machine()}\n")
    for name, form in {"dense": {}, "dsa, BF16 queries": {"dsa": True}}.items():
        print(f"Most heads of a polling query, all ranks on this GPU, {name}:\n")
        head = ("batch", *(f"{ranks} ranks" for ranks in RANKS))
        show(head, ((f"{batch} rows", *room(batch, **form)) for batch in ROWS))
    os.environ["KGEN_RANKS_PER_GPU"] = "1"
    print("µs a query, D = 2, programmatic launches in one graph:\n")
    head = ("shape", "without dcp", "sent, no poll", "sent and polled", "query_wait")
    show(head, ((f"{h}x{b}", *(f"{t:.2f}" for t in sent(h, b))) for h, b in SHAPES))
    os.environ["KGEN_RANKS_PER_GPU"] = "2"
    print("µs a layer's query and tail, two ranks at once on this GPU, plain launches:\n")
    rows = ((f"{h}x{b}", side_by_side(h, b, False), side_by_side(h, b, True)) for h, b in SHAPES)
    show(("shape", "query, value", "query with dcp, dcp_value"), rows)


if __name__ == "__main__":
    main()
