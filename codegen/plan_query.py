"""The plan of the query kernel: its schedules, shared memory, parameters and work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from .arch import Target
from .blueprint import Plan, Region, Schedule, Work, stack, work
from .errors import ConfigError
from .params import Array, Axis, ParamTable, Scalar
from .schema import Query

LORA, KV, NOPE, ROPE = 1536, 512, 128, 64
HEAD_ROWS = NOPE + ROPE
CLUSTER = 8
COMPUTE_THREADS, KV_THREADS = 256, 32
UK_BYTES = NOPE * 2 * KV // CLUSTER  # w_uk's 64 columns of a CTA
NOPE_PITCH = 2 * NOPE + 16

ROWS = Schedule("rows", 8)
KPAIR = Schedule("ksplit", 16, 2)
KSPLIT = Schedule("ksplit", 32, 8)

# Which schedule serves a batch: the first whose bound is not below it. Measured on an H200
# (docs/performance.md); the same on the other datacenter parts until measured there. Of the
# schemes only `rows` fits sm_120a.
_HOPPER = ((8, ROWS), (32, KPAIR), (256, KSPLIT))
SCHEDULES: dict[str, tuple[tuple[int, Schedule], ...]] = {
    "sm_90a": _HOPPER,
    "sm_100a": _HOPPER,
    "sm_103a": _HOPPER,
    "sm_120a": ((256, ROWS),),
}
_FORCED: dict[str, tuple[tuple[int, Schedule], ...]] = {
    "rows": ((256, ROWS),),
    "ksplit": ((32, KPAIR), (256, KSPLIT)),
}


def _choose(config: Query, chip: Target) -> Schedule:
    table = _FORCED.get(config.scheme, SCHEDULES[chip.name])
    return next(schedule for bound, schedule in table if config.batch <= bound)


def plan_query(config: Query, chip: Target, schedule: Schedule | None) -> Plan:
    schedule = schedule or _choose(config, chip)
    if config.q_b_cp_async and schedule.scheme != "rows":
        allowed = f"belongs to the rows scheme; batch {config.batch} uses {schedule.scheme} here"
        raise ConfigError("q_b_cp_async", True, allowed)
    options: dict[str, dict[str, bool | int]] = {
        "rows": {"q_b_cp_async": config.q_b_cp_async},
        "ksplit": {"k_splits": schedule.k_splits},
    }
    variant = _VARIANTS[schedule.scheme, schedule.k_splits]
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template=variant.template,
        entry="kgen_" + config.slug.replace("-", "_").replace(".", "_"),
        grid=(CLUSTER, config.heads, ceil(config.batch / schedule.tokens)),
        cluster=CLUSTER,
        threads=COMPUTE_THREADS + KV_THREADS,
        smem=variant.smem(schedule),
        params=_query_params(config),
        constants={
            "num_heads": config.heads,
            "release": config.release,
            **options[schedule.scheme],
        },
        work=_query_work(config, chip),
    )


def _rows_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, rows, warps = schedule.tokens, HEAD_ROWS // CLUSTER, COMPUTE_THREADS // 32
    return stack(
        ("weights", rows * (2 * LORA + 64), f"w_qb [{rows}, 1536] BF16"),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        ("partials", warps * tokens * rows * 4, f"[{warps} warps, {tokens}, {rows}] FP32"),
        ("nope", tokens * NOPE_PITCH, f"[{tokens}, 128] BF16"),
        ("sums", tokens * warps * 4, f"sums of squares [{tokens}, {warps} warps] FP32"),
        ("barriers", 2 * 8, "mbarriers"),
    )


def _ksplit_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, splits = schedule.tokens, schedule.k_splits
    columns = LORA // splits
    pitch = 2 * columns + 16
    partials = splits * tokens * HEAD_ROWS // CLUSTER * 4
    x = max(tokens * pitch, UK_BYTES - partials)
    return stack(
        ("weights", HEAD_ROWS * pitch, f"w_qb [{HEAD_ROWS}, {columns}] BF16"),
        ("x", x, f"q_c [{tokens}, {columns}] BF16; w_uk before, nope after"),
        ("partials", partials, f"[{splits} slices, {tokens}, 24] FP32; w_uk before"),
        ("sums", splits * tokens * 4, f"sums of squares [{splits} slices, {tokens}] FP32"),
        ("barriers", 3 * 8, "mbarriers"),
    )


def _kpair_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, rows, columns = schedule.tokens, HEAD_ROWS // CLUSTER * 2, LORA // 2
    warps = COMPUTE_THREADS // 32
    return stack(
        ("weights", rows * (2 * columns + 64), f"w_qb [{rows}, {columns}] BF16"),
        ("w_qa", 2 * columns, f"w_qa [{columns}] BF16"),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        (
            "partials",
            warps // 2 * tokens * rows * 4,
            f"[{warps // 2} warps, {tokens}, {rows}] FP32",
        ),
        ("received", tokens * rows // 2 * 4, f"the peer's sums [{tokens}, {rows // 2}] FP32"),
        ("nope", tokens * NOPE_PITCH, f"[{tokens}, 128] BF16"),
        ("sums", tokens * (warps + 1) * 4, f"sums of squares [{warps} warps + the peer, {tokens}]"),
        ("barriers", 4 * 8, "mbarriers"),
    )


@dataclass(frozen=True)
class Variant:
    """A template, and the shared memory that it needs under a schedule."""

    template: str
    smem: Callable[[Schedule], tuple[Region, ...]]


# By scheme and k_splits: which template serves a schedule.
_VARIANTS: dict[tuple[str, int], Variant] = {
    ("rows", 1): Variant("query_rows.cu.j2", _rows_smem),
    ("ksplit", 2): Variant("query_kpair.cu.j2", _kpair_smem),
    ("ksplit", 8): Variant("query_ksplit.cu.j2", _ksplit_smem),
}


def _query_params(config: Query) -> ParamTable:
    heads = config.heads
    rows = Axis(rows=True)
    return ParamTable(
        arrays=(
            Array(
                "qkv",
                "bf16",
                (Axis(rows=True, stride="qkv_stride"), Axis(LORA + KV + ROPE, at_least=True)),
                doc="packed projection rows: q_a, kv_a, k_pe, what follows",
            ),
            Array("w_qa", "bf16", (Axis(LORA),), doc="q_a RMSNorm weight"),
            Array("w_kva", "bf16", (Axis(KV),), doc="kv_a RMSNorm weight"),
            Array("w_qb", "bf16", (Axis(heads * HEAD_ROWS), Axis(LORA)), doc="Q_B, head by head"),
            Array(
                "w_uk",
                "bf16",
                (Axis(heads, stride="w_uk_stride"), Axis(NOPE), Axis(KV)),
                doc="W_UK of each head",
            ),
            Array(
                "cache",
                "u8",
                (Axis(stride="page_stride"), Axis(size="page_size"), Axis(KV + ROPE)),
                role="inout",
                doc="paged KV cache",
            ),
            Array("slots", "i64", (rows,), align=8, doc="cache row of each token; negative: none"),
            Array("q_scale_inv", "f32", align=4, doc="multiplies the query"),
            Array("k_scale_inv", "f32", align=4, doc="multiplies the KV row"),
            Array(
                "out",
                "e4m3",
                (Axis(rows=True, stride="out_stride"), Axis(heads), Axis(KV + ROPE)),
                role="out",
                doc="query: 512 latent, 64 rope columns a head",
            ),
        ),
        scalars=(
            Scalar("eps", "f32", default=1e-6, low=0.0, doc="of both RMSNorms"),
            Scalar("num_rows", "i32", default=config.batch, low=0, high=config.batch, doc="rows"),
        ),
    )


def _query_work(config: Query, chip: Target) -> Work:
    heads, batch = config.heads, config.batch
    weights = 2 * (heads * (HEAD_ROWS * LORA + NOPE * KV) + LORA + KV)
    token = 2 * (LORA + KV + ROPE) + 8 + (KV + ROPE) * (heads + 1)
    moved = weights + batch * token
    flops = 2 * batch * heads * (HEAD_ROWS * LORA + NOPE * KV)
    return work(moved, flops, chip)
