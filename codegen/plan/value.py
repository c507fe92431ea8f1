"""The plan of the value kernel."""

from __future__ import annotations

from math import ceil

from ..dims import KV_LORA, V
from ..schema import DcpValue, Gate, Value
from ..targets import Target
from .model import Plan, Schedule, code_name, stack, work
from .params import Array, Axis, ParamTable, num_rows

TILE = 16  # token rows of a CTA: the M side of one MMA
OUTPUTS = 32  # of a head, a value CTA's
THREADS = 128

# Measured on an H200 (docs/performance.md): what starts early takes room from what still runs.
_SHORT, _LONG = Schedule("tiles", TILE, release="start"), Schedule("tiles", TILE)


def gated(config: Value | Gate | DcpValue, *first: Array) -> ParamTable:
    """The table of a kernel that ends with the gate; its own arrays come ``first``."""
    columns = Axis(config.heads * V, label="heads * 128")
    return ParamTable(
        arrays=(
            *first,
            Array("gate", "bf16", (Axis(rows=True, stride="gate_stride"), columns), doc="gate"),
            Array(
                "lengths",
                "i32",
                (Axis(rows=True, per=config.q),),
                align=4,
                doc="of the requests; where <= 0 the rows are zero",
            ),
            Array(
                "out",
                "bf16",
                (Axis(rows=True, stride="out_stride"), columns),
                role="out",
                doc="out",
            ),
        ),
        scalars=(num_rows(config.batch),),
    )


def w_uv_of(config: Value | DcpValue) -> Array:
    """The weights of the way back from the latent."""
    return Array(
        "w_uv",
        "bf16",
        (Axis(config.heads, stride="w_uv_stride", label="heads"), Axis(V), Axis(KV_LORA)),
        doc="W_UV of each head",
        swapped=True,
    )


def plan(config: Value, chip: Target, schedule: Schedule | None) -> Plan:
    """A CTA for 32 outputs of a head and 16 token rows; its four warps split the latent."""
    heads, batch, warps = config.heads, config.batch, THREADS // 32
    latent = Array(
        "latent",
        "bf16",
        (Axis(rows=True, stride="latent_stride"), Axis(heads, label="heads"), Axis(KV_LORA)),
        doc="attention latent",
    )
    token = heads * (2 * KV_LORA + 4 * V) + 4
    schedule = schedule or (_SHORT if batch <= TILE or heads >= 32 else _LONG)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template="value/value.cu.j2",
        code=code_name(config, schedule, ("heads", "batch")),
        grid=(V // OUTPUTS, heads, ceil(batch / TILE)),
        cluster=1,
        threads=THREADS,
        smem=stack(
            ("weights", OUTPUTS * (2 * KV_LORA + 64), "w_uv [32, 512] BF16"),
            ("partials", warps * TILE * OUTPUTS * 4, f"[{warps} warps, 16, 32] FP32"),
            ("barrier", 8, "mbarrier"),
        ),
        params=gated(config, latent, w_uv_of(config)),
        constants={"q": config.q},
        work=work(2 * heads * V * KV_LORA + batch * token, 2 * batch * heads * V * KV_LORA, chip),
    )
