"""The plan of the query_norm kernel, which stores the q_c rows of a query without store_qc."""

from __future__ import annotations

from ..dims import Q_LORA
from ..schema import QueryNorm
from ..targets import Target
from .model import Plan, Schedule, code_name, stack, work
from .params import Array, Axis, ParamTable, packed_row, q_c_rows, step_scalars

THREADS = Q_LORA // 8  # 16 bytes a thread

# Measured on an H200 (docs/performance.md).
_SHORT, _LONG = Schedule("row", 1, release="start"), Schedule("row", 1)


def plan(config: QueryNorm, chip: Target, schedule: Schedule | None) -> Plan:
    """One CTA a row."""
    schedule = schedule or (_SHORT if config.batch <= 32 else _LONG)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template="query/norm.cu.j2",
        code=code_name(config, schedule),
        grid=(config.batch, 1, 1),
        cluster=1,
        threads=THREADS,
        smem=stack(("sums", THREADS // 32 * 4, "sums of squares [6 warps] FP32")),
        params=ParamTable(
            arrays=(
                packed_row(),
                Array("w_qa", "bf16", (Axis(Q_LORA),), doc="q_a RMSNorm weight"),
                q_c_rows(),
            ),
            scalars=step_scalars(config.batch),
        ),
        constants={},
        work=work(2 * Q_LORA + 4 * Q_LORA * config.batch, 0, chip),
    )
