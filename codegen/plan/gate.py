"""The plan of the gate kernel, which follows a batched GEMM with W_UV."""

from __future__ import annotations

from math import ceil

from ..dims import V
from ..schema import Gate
from ..targets import Target
from .model import Plan, Schedule, code_name, work
from .params import Array, Axis
from .value import TILE, gated

THREADS = 256


def plan(config: Gate, chip: Target, schedule: Schedule | None) -> Plan:
    """A CTA for a head and 16 token rows, a thread for 8 outputs."""
    heads, batch = config.heads, config.batch
    values = Array(
        "values",
        "bf16",
        (Axis(heads, stride="values_stride", label="heads"), Axis(rows=True), Axis(V)),
        doc="W_UV's outputs, head by head",
    )
    schedule = schedule or Schedule("tiles", TILE)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template="value/gate.cu.j2",
        code=code_name(config, schedule, ("heads", "batch")),
        grid=(1, heads, ceil(batch / TILE)),
        cluster=1,
        threads=THREADS,
        smem=(),
        params=gated(config, values),
        constants={"q": config.q},
        work=work(batch * (heads * 6 * V + 4), 0, chip),
    )
