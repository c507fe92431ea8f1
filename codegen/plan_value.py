"""The plans of the value and gate kernels."""

from __future__ import annotations

from math import ceil

from .arch import Target
from .blueprint import Plan, Schedule, entry_name, stack, work
from .params import Array, Axis, ParamTable, num_rows
from .schema import DcpValue, Gate, Value

LATENT, V = 512, 128
TILE = 16  # token rows of a CTA: the M side of one MMA
OUTPUTS = 32  # of a head, a value CTA's
VALUE_THREADS, GATE_THREADS = 128, 256


def gated(config: Value | Gate | DcpValue, *first: Array) -> ParamTable:
    """The table of a kernel that ends with the gate; its own arrays come ``first``."""
    columns = Axis(config.heads * V)
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
        (Axis(config.heads, stride="w_uv_stride"), Axis(V), Axis(LATENT)),
        doc="W_UV of each head",
        swapped=True,
    )


def plan_value(config: Value, chip: Target, schedule: Schedule | None) -> Plan:
    """A CTA for 32 outputs of a head and 16 token rows; its four warps split the latent."""
    heads, batch, warps = config.heads, config.batch, VALUE_THREADS // 32
    latent = Array(
        "latent",
        "bf16",
        (Axis(rows=True, stride="latent_stride"), Axis(heads), Axis(LATENT)),
        doc="attention latent",
    )
    token = heads * (2 * LATENT + 4 * V) + 4
    return Plan(
        config=config,
        target=chip,
        schedule=schedule or Schedule("tiles", TILE),
        template="value.cu.j2",
        entry=entry_name(config),
        grid=(V // OUTPUTS, heads, ceil(batch / TILE)),
        cluster=1,
        threads=VALUE_THREADS,
        smem=stack(
            ("weights", OUTPUTS * (2 * LATENT + 64), "w_uv [32, 512] BF16"),
            ("partials", warps * TILE * OUTPUTS * 4, f"[{warps} warps, 16, 32] FP32"),
            ("barrier", 8, "mbarrier"),
        ),
        params=gated(config, latent, w_uv_of(config)),
        constants={"q": config.q, "release": config.release},
        work=work(2 * heads * V * LATENT + batch * token, 2 * batch * heads * V * LATENT, chip),
    )


def plan_gate(config: Gate, chip: Target, schedule: Schedule | None) -> Plan:
    """A CTA for a head and 16 token rows, a thread for 8 outputs."""
    heads, batch = config.heads, config.batch
    values = Array(
        "values",
        "bf16",
        (Axis(heads, stride="values_stride"), Axis(rows=True), Axis(V)),
        doc="W_UV's outputs, head by head",
    )
    return Plan(
        config=config,
        target=chip,
        schedule=schedule or Schedule("tiles", TILE),
        template="gate.cu.j2",
        entry=entry_name(config),
        grid=(1, heads, ceil(batch / TILE)),
        cluster=1,
        threads=GATE_THREADS,
        smem=(),
        params=gated(config, values),
        constants={"q": config.q, "release": config.release},
        work=work(batch * (heads * 6 * V + 4), 0, chip),
    )
