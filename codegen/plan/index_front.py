"""The plan of the DSA indexer's front."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..dims import INDEX_DIM, INDEX_HEADS, INDEX_PAGE, Q_LORA
from ..schema import IndexFront
from ..targets import Target
from .model import Plan, Region, Schedule, code_name, stack, work
from .params import Array, Axis, ParamTable, Scalar, num_rows

CLUSTER = 4
WARPS = 8
KEY_THREADS = 32
TILE = 32  # token rows of a CTA at most


@dataclass(frozen=True)
class Form:
    """A number format of queries and keys: bytes a token takes, and those of its scales."""

    query_bytes: int  # of a head
    scale_bytes: int  # of a head's query, 0 where it is folded into the head weight
    key_bytes: int  # of a key with its scales


FP8 = Form(INDEX_DIM, 0, INDEX_DIM + 4)
FP4 = Form(INDEX_DIM // 2, 4, INDEX_DIM // 2 + 4)


@dataclass(frozen=True)
class Variant:
    """A template, the token rows that its CTAs multiply at a time, and their shared memory."""

    template: str
    step: int
    k_splits: int
    smem: tuple[Region, ...]


def _rows() -> Variant:
    step, rows = 8, INDEX_DIM // CLUSTER
    smem = stack(
        ("weights", rows * (2 * Q_LORA + 64), f"wq_b [{rows}, 1536] BF16"),
        ("w_qa", 2 * Q_LORA, "w_qa [1536] BF16"),
        ("partials", WARPS * step * (rows + 8) * 4, f"[{WARPS} warps, 8, {rows}] FP32"),
        ("sums", step * WARPS * 4, f"sums of squares [8, {WARPS} warps] FP32"),
        ("amax", 2 * CLUSTER * step * 4, "[2 steps, 4 CTAs, 8] FP32"),
        ("barriers", 3 * 8, "mbarriers"),
    )
    return Variant("index_front/rows.cu.j2", step, 1, smem)


def _ksplit() -> Variant:
    step, columns = 16, Q_LORA // CLUSTER
    pitch = 2 * columns + 16
    smem = stack(
        ("weights", INDEX_DIM * pitch, f"wq_b [{INDEX_DIM}, {columns}] BF16"),
        ("x", step * pitch, f"q_c [16, {columns}] BF16; partial products after"),
        ("sums", CLUSTER * step * 4, "sums of squares [4 CTAs, 16] FP32"),
        ("barriers", 3 * 8, "mbarriers"),
    )
    return Variant("index_front/ksplit.cu.j2", step, CLUSTER, smem)


VARIANTS = {"rows": _rows(), "ksplit": _ksplit()}
ROWS_UP_TO = 8  # token rows; measured on an H200 (docs/performance.md)


def schedule_of(scheme: str, batch: int) -> Schedule:
    """How ``scheme`` cuts a batch: whole steps of tokens."""
    variant = VARIANTS[scheme]
    tokens = min(TILE, ceil(batch / variant.step) * variant.step)
    return Schedule(scheme, tokens, variant.k_splits)


def plan(config: IndexFront, chip: Target, schedule: Schedule | None) -> Plan:
    """A cluster of four CTAs for each indexer head and tile of 32 tokens."""
    batch, form = config.batch, FP4 if config.fp4 else FP8
    scheme = "rows" if batch <= ROWS_UP_TO else "ksplit"
    schedule = schedule or schedule_of(scheme, batch)
    variant = VARIANTS[schedule.scheme]
    weights = 2 * (INDEX_HEADS * INDEX_DIM * Q_LORA + Q_LORA) + 8 * INDEX_DIM
    read = 2 * (Q_LORA + INDEX_DIM + INDEX_HEADS) + 8
    written = INDEX_HEADS * (form.query_bytes + form.scale_bytes + 2) + form.key_bytes
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template=variant.template,
        code=code_name(config, schedule),
        grid=(CLUSTER, INDEX_HEADS, ceil(batch / schedule.tokens)),
        cluster=CLUSTER,
        threads=32 * WARPS + KEY_THREADS,
        smem=variant.smem,
        params=_params(config, form),
        constants={"mx": config.mx, "fp4": config.fp4},
        work=work(
            weights + batch * (read + written), 2 * batch * INDEX_HEADS * INDEX_DIM * Q_LORA, chip
        ),
    )


def _params(config: IndexFront, form: Form) -> ParamTable:
    def output(name: str, dtype: str, doc: str, *axes: Axis, align: int = 16) -> Array:
        return Array(name, dtype, (Axis(rows=True), *axes), role="out", doc=doc, align=align)

    query = output(
        "q_out",
        "u8" if config.fp4 else "e4m3",
        "indexer queries",
        Axis(INDEX_HEADS),
        Axis(form.query_bytes),
    )
    scales = (
        output("q_scale", "u8", "UE8M0 scales of 32 columns", Axis(INDEX_HEADS), Axis(4)),
    ) * config.fp4
    return ParamTable(
        arrays=(
            Array(
                "projected",
                "bf16",
                (Axis(rows=True, stride="projected_stride"), Axis(Q_LORA, at_least=True)),
                doc="packed projection rows",
            ),
            Array("w_qa", "bf16", (Axis(Q_LORA),), doc="q_a RMSNorm weight"),
            Array(
                "wq_b", "bf16", (Axis(INDEX_HEADS * INDEX_DIM), Axis(Q_LORA)), doc="head by head"
            ),
            Array("norm_w", "f32", (Axis(INDEX_DIM),), doc="key LayerNorm weight"),
            Array("norm_b", "f32", (Axis(INDEX_DIM),), doc="key LayerNorm bias"),
            Array(
                "cache",
                "u8",
                (Axis(stride="page_stride"), Axis(INDEX_PAGE), Axis(form.key_bytes)),
                role="inout",
                doc="paged indexer cache: a page's keys, then its scales",
            ),
            Array(
                "slots", "i64", (Axis(rows=True),), align=8, doc="row of each token; negative: none"
            ),
            query,
            *scales,
            output("w_out", "bf16", "head weights", Axis(INDEX_HEADS)),
        ),
        scalars=(
            Scalar(
                "key", "i32", low=0, columns=INDEX_DIM, multiple=4, doc="column of the indexer key"
            ),
            Scalar("weight", "i32", low=0, columns=INDEX_HEADS, doc="column of the head weights"),
            Scalar("eps", "f32", default=1e-6, low=0.0, doc="of the RMSNorm"),
            Scalar("key_eps", "f32", default=1e-5, low=0.0, doc="of the key LayerNorm"),
            num_rows(config.batch),
        ),
    )
