"""The plan of a DCP layer's tail: send, merge, W_UV, gate."""

from __future__ import annotations

from math import ceil

from ..dims import KV_LORA, V
from ..schema import DcpValue
from ..targets import Target
from .mailbox import beside_constants, query_dtype, query_mailbox, rank_of, report_of
from .model import Plan, Schedule, code_name, stack, work
from .params import Array, Axis, ParamTable
from .value import TILE, gated, w_uv_of

CLUSTER = 4
THREADS = 128
OUTPUTS = V // CLUSTER
PITCH = 2 * KV_LORA + 16


def plan(config: DcpValue, chip: Target, schedule: Schedule | None) -> Plan:
    """A cluster of four CTAs for each head and 16 token rows."""
    heads, batch, warps = config.heads, config.batch, THREADS // 32
    token = config.dcp * heads * (6 * KV_LORA + 12) + heads * 4 * V
    schedule = schedule or Schedule("tiles", TILE)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template="value/dcp_value.cu.j2",
        code=code_name(config, schedule),
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
        constants={**beside_constants(config), "q": config.q},
        work=work(2 * heads * V * KV_LORA + batch * token, 2 * batch * heads * V * KV_LORA, chip),
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
            (Axis(rows=True, stride="rows_stride"), Axis(ranks * heads), Axis(KV_LORA)),
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
            (Axis(ranks), Axis(size="capacity"), Axis(heads), Axis(KV_LORA)),
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
