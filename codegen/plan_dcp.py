"""The plans of the kernels around a DCP query: query_wait and dcp_value."""

from __future__ import annotations

from math import ceil

from .arch import Target
from .blueprint import Plan, Schedule, entry_name, stack, work
from .params import Array, Axis, ParamTable, itemsize, num_rows
from .plan_mailbox import (
    COLUMNS,
    Mailed,
    mailbox_constants,
    query_mailbox,
    rank_of,
    report_of,
)
from .plan_query import form_of
from .plan_value import LATENT, TILE, V, gated, w_uv_of
from .schema import DcpValue, Query, QueryWait

CLUSTER = 4
THREADS, WAIT_THREADS = 128, 256
OUTPUTS = V // CLUSTER
PITCH = 2 * LATENT + 16


def query_dtype(config: Mailed) -> str:
    """The dtype of what a query mailbox holds."""
    if isinstance(config, Query):
        return form_of(config).query
    return "bf16" if config.bf16 else "e4m3"


def _constants(config: QueryWait | DcpValue) -> dict[str, bool | int | str]:
    return {
        "num_heads": config.heads,
        **mailbox_constants(config),
        "value_bytes": itemsize(query_dtype(config)),
        "release": config.release,
    }


def plan_query_wait(config: QueryWait, chip: Target, schedule: Schedule | None) -> Plan:
    """One CTA a token."""
    moved = config.batch * config.dcp * config.heads * COLUMNS * itemsize(query_dtype(config))
    return Plan(
        config=config,
        target=chip,
        schedule=schedule or Schedule("row", 1),
        template="query_wait.cu.j2",
        entry=entry_name(config),
        grid=(config.batch, 1, 1),
        cluster=1,
        threads=WAIT_THREADS,
        smem=(),
        params=ParamTable(
            arrays=(query_mailbox(config, query_dtype(config)),),
            scalars=(num_rows(config.batch), *report_of(config)),
        ),
        constants=_constants(config),
        work=work(moved, 0, chip),
    )


def plan_dcp_value(config: DcpValue, chip: Target, schedule: Schedule | None) -> Plan:
    """A cluster of four CTAs for each head and 16 token rows."""
    heads, batch, warps = config.heads, config.batch, THREADS // 32
    token = config.dcp * heads * (6 * LATENT + 12) + heads * 4 * V
    return Plan(
        config=config,
        target=chip,
        schedule=schedule or Schedule("tiles", TILE),
        template="dcp_value.cu.j2",
        entry=entry_name(config),
        grid=(CLUSTER, heads, ceil(batch / TILE)),
        cluster=CLUSTER,
        threads=THREADS,
        smem=stack(
            ("weights", OUTPUTS * PITCH, "w_uv [32, 512] BF16"),
            ("latent", TILE * PITCH, "merged latent [16, 512] BF16"),
            ("partials", warps * TILE * OUTPUTS * 4, f"[{warps} warps, 16, 32] FP32"),
            ("barriers", 2 * 8, "mbarriers"),
        ),
        params=_value_params(config),
        constants={**_constants(config), "q": config.q},
        work=work(2 * heads * V * LATENT + batch * token, 2 * batch * heads * V * LATENT, chip),
        polling=heads,
    )


def _value_params(config: DcpValue) -> ParamTable:
    heads, ranks = config.heads, config.dcp
    per_request = Axis(rows=True, per=config.q)
    table = gated(
        config,
        Array(
            "rows",
            "bf16",
            (Axis(rows=True, stride="rows_stride"), Axis(ranks * heads), Axis(LATENT)),
            doc="this rank's attention over its share of the context",
        ),
        Array(
            "lse",
            "f32",
            (Axis(rows=True, stride="lse_stride"), Axis(ranks * heads)),
            align=4,
            doc="its log-sum-exp, base 2",
        ),
        Array("local_lengths", "i32", (per_request,), align=4, doc="of this rank's share"),
        w_uv_of(config),
        query_mailbox(config, query_dtype(config)),
        Array(
            "partials",
            "bf16",
            (Axis(ranks), Axis(size="capacity"), Axis(heads), Axis(LATENT)),
            role="inout",
            doc="this rank's mailbox of rows, of this parity",
        ),
        Array(
            "lse_box",
            "f32",
            (Axis(ranks), Axis(size="lse_capacity"), Axis(heads)),
            role="inout",
            doc="this rank's mailbox of LSEs, of this parity",
        ),
        Array("partial_peers", "i64", (Axis(ranks),), align=8, doc="addresses of all partials"),
        Array("lse_peers", "i64", (Axis(ranks),), align=8, doc="addresses of all lse_box"),
    )
    more = (rank_of(config), *report_of(config))
    return ParamTable(arrays=table.arrays, scalars=(*table.scalars, *more))
