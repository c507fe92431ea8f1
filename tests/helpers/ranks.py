"""Kernels of virtual ranks on the CPU: their inputs, and what each rank must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kgen.codegen import schema
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.dims import QUERY_SENTINEL
from kgen.codegen.emulator.executor import Emulated, emulate
from kgen.codegen.emulator.kernel import poisoned
from kgen.codegen.emulator.ranks import aligned, boxes_of, filled, launch, words
from kgen.codegen.plan import plan
from kgen.codegen.plan.forms import form_of
from kgen.codegen.reference import dcp
from kgen.codegen.verify.samples import Rng, bf16, query_weights

PAGES, PAGE = 2, 64
SENT = {"rows": "rows", "lses": "lse", "local_lengths": "local_lengths"}  # by argument
SPARE = 2  # rows of a mailbox beyond the batch

Arrays = dict[str, Any]


@dataclass
class Queries:
    """The query of every rank, and what each computes without DCP."""

    config: Any
    whole: Emulated
    alone: Emulated
    boxes: list[Mailboxes]
    weights: list[Arrays]
    rng: Rng
    held: list[Arrays] = field(default_factory=list)

    @classmethod
    def of(cls, *, dcp: int, heads: int, batch: int, seed: int = 0, **fields: Any) -> Queries:
        shape = {"heads": heads, "batch": batch}
        config: Any = schema.make("query", shape | {"dcp": dcp} | fields)
        plain = {k: v for k, v in fields.items() if k in ("dsa", "fp8", "nvfp4", "scheme")}
        wide = form_of(config).query == "bf16"
        rng = np.random.default_rng(seed)
        weights = [_weights(rng, heads) for _ in range(dcp)]
        box = Shape(dcp, heads, batch + SPARE, config.q_heads, wide)
        made = plan(config)
        alone = plan(schema.make("query", shape | plain), made.target, made.schedule)
        return cls(config, emulate(made), emulate(alone), boxes_of(box), weights, rng)

    def inputs(self, qkv: np.ndarray | None = None) -> list[Arrays]:
        """Inputs of a step, and poisoned outputs, of each rank: all have the same rows."""
        batch, form = self.config.batch, form_of(self.config)
        rows = bf16(self.rng, batch, 2112) if qkv is None else qkv
        slots = self.rng.permutation(PAGES * PAGE)[:batch].astype(np.int64)
        step = {"qkv": aligned(rows), "slots": aligned(slots)}
        return [step | own | _outputs(self.whole, batch, form.row_bytes) for own in self.weights]

    def expected(self, given: list[Arrays], seed: int) -> np.ndarray:
        """The ranks' queries side by side, each computed alone."""
        batch, bytes_ = self.config.batch, form_of(self.config).row_bytes
        names = self.alone.plan.params.names
        queries = []
        for arrays in given:
            mine = {name: arrays[name] for name in names if name in arrays}
            mine |= _outputs(self.alone, batch, bytes_)
            self.alone(mine, seed=seed)
            queries.append(mine["out"])
        return np.concatenate(queries, axis=1)

    def step(self, parity: int, seed: int, *, lazy: bool = True, **rows: Any) -> None:
        """One step, judged: every rank's mailbox is ``expected`` and nothing else was written."""
        given = self.inputs(rows.get("qkv"))
        want = self.expected(given, seed)
        launch(self.whole, self.boxes, given, parity, seed=seed, lazy=lazy)
        self.held = given
        self.check(given, want, parity)

    def check(self, given: list[Arrays], want: np.ndarray, parity: int) -> None:
        heads, batch = self.config.heads, self.config.batch
        assert not (words(np.ascontiguousarray(want)) == QUERY_SENTINEL).any()
        for rank, (box, arrays) in enumerate(zip(self.boxes, given, strict=True)):
            queries = box.view("mailbox", parity)
            mine = slice(rank * heads, (rank + 1) * heads)
            assert (arrays["out"] == want[:, mine]).all(), f"rank {rank}: its own query"
            assert (queries[:batch, : want.shape[1]] == want).all(), f"rank {rank}: its mailbox"
            queries[:batch, : want.shape[1]] = np.iinfo(queries.dtype).max  # what the reader does
        assert filled(self.boxes, "mailbox", parity), "padding rows or rows past the batch"


def _weights(rng: Rng, heads: int) -> Arrays:
    one = {name: np.full(1, 2, np.float32) for name in ("q_scale_inv", "k_scale_inv", "k_scale")}
    made = query_weights(rng, heads) | one
    return {name: aligned(array) for name, array in made.items()}


def _outputs(made: Emulated, batch: int, row_bytes: int) -> Arrays:
    outputs: Arrays = {"cache": poisoned((PAGES, PAGE, row_bytes), 1)}
    for array in made.plan.params.arrays:
        if array.role == "out":
            rest = (axis.extent for axis in array.axes[1:])
            outputs[array.name] = poisoned((batch, *rest), array.itemsize)
    return outputs


@dataclass
class Tails:
    """The dcp_value of every rank, and its reference."""

    config: Any
    made: Emulated
    boxes: list[Mailboxes]
    weights: list[np.ndarray]
    rng: Rng

    @classmethod
    def of(cls, *, seed: int = 0, **fields: Any) -> Tails:
        config: Any = schema.make("dcp_value", fields)
        rng = np.random.default_rng(seed)
        capacity = config.batch + SPARE
        shape = Shape(config.dcp, config.heads, capacity, config.q_heads, config.bf16)
        weights = [
            aligned(bf16(rng, config.heads, 128, 512, scale=0.05)) for _ in range(config.dcp)
        ]
        return cls(config, emulate(plan(config)), boxes_of(shape), weights, rng)

    def inputs(self) -> list[Arrays]:
        """Inputs of a step of each rank, and its poisoned output; some requests are empty."""
        c, rng = self.config, self.rng
        all_heads = c.dcp * c.heads
        lengths = aligned(rng.integers(0, 4, c.batch // c.q).astype(np.int32))
        return [
            {
                "rows": aligned(bf16(rng, c.batch, all_heads, 512)),
                "lse": aligned(rng.standard_normal((c.batch, all_heads)).astype(np.float32) * 5),
                "local_lengths": aligned(np.full(c.batch // c.q, 3, np.int32)),
                "w_uv": self.weights[rank],
                "gate": aligned(bf16(rng, c.batch, c.heads * 128)),
                "lengths": lengths,
                "out": poisoned((c.batch, c.heads * 128), 2),
            }
            for rank in range(c.dcp)
        ]

    def run(self, given: list[Arrays], parity: int, seed: int, *, lazy: bool = True) -> None:
        """One launch of every rank, its query mailbox full before."""
        for box in self.boxes:
            box.view("mailbox", parity)[: self.config.batch] = 5
        launch(self.made, self.boxes, given, parity, seed=seed, lazy=lazy)

    def expected(self, given: list[Arrays], rank: int) -> np.ndarray:
        sources: Any = {key: [arrays[name] for arrays in given] for key, name in SENT.items()}
        own = {"w_uv": "w_uv", "gates": "gate", "lengths": "lengths"}
        mine = {name: given[rank][argument] for name, argument in own.items()}
        return dcp.dcp_value(**sources, **mine, rank=rank, q=self.config.q)
