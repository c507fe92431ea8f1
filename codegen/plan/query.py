"""The plan of the query kernel: its schedules, shared memory, parameters and work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from ..dims import HEAD_ROWS, KV_LORA, NOPE, PACKED, Q_LORA, QUERY
from ..errors import ConfigError, PlanError
from ..schema import Query
from ..targets import Target
from .forms import form_of, stores_qc
from .mailbox import mailbox_constants, sent_query, sent_scalars
from .model import Plan, Region, Schedule, Work, code_name, stack, work
from .params import Array, Axis, ParamTable, itemsize, packed_row, q_c_rows, step_scalars
from .schedules import choose

CLUSTER = 8
COMPUTE_THREADS = 256
UK_BYTES = NOPE * 2 * KV_LORA // CLUSTER  # w_uk's 64 columns of a CTA
NOPE_PITCH = 2 * NOPE + 16
_ALONE = 116 * 1024  # bytes of shared memory: no SM has room for two such CTAs
_STAGED_UK = NOPE * 2 * 128  # w_uk's 128 columns of a CTA that absorbs half of the tokens

# Fields that no machine code depends on: heads are the grid's y, but mailboxes have rows of them.
_DCP_LAUNCH_DATA = ("batch", "scheme")
_LAUNCH_DATA = ("heads", *_DCP_LAUNCH_DATA)


def plan(config: Query, chip: Target, schedule: Schedule | None) -> Plan:
    """A cluster of 8 CTAs for each head and tile of tokens."""
    _check_transport(config, chip)
    schedule = schedule or choose(config, chip)
    if config.q_b_cp_async and schedule.scheme != "rows":
        allowed = f"belongs to the rows scheme; batch {config.batch} uses {schedule.scheme} here"
        raise ConfigError("q_b_cp_async", True, allowed)
    options: dict[str, dict[str, bool | int | str]] = {
        "folded": {},
        "rows": {"q_b_cp_async": config.q_b_cp_async},
        "ksplit": {"k_splits": schedule.k_splits},
        "wgmma": {"k_splits": schedule.k_splits, "x_slots": _x_slots(schedule), "piece": "Vec16"},
    }
    form = form_of(config)
    variant = _VARIANTS[schedule.scheme, schedule.k_splits]
    if schedule.scheme == "folded":
        _check_folded(config, chip)
    if schedule.scheme == "wgmma":
        _check_wgmma(config, chip)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template=variant.template,
        code=code_name(config, schedule, _LAUNCH_DATA if not config.dcp else _DCP_LAUNCH_DATA),
        grid=(CLUSTER, config.heads, ceil(config.batch / schedule.tokens)),
        cluster=CLUSTER,
        threads=COMPUTE_THREADS + 32 * variant.kv_warps,
        smem=variant.smem(schedule),
        params=_query_params(config),
        constants={
            "query_type": form.query,
            "kv_header": form.kv_header,
            "kv_scale": form.kv_scale,
            "dsa": config.dsa,
            "store_qc": stores_qc(config),
            "late": config.late,
            "transport": config.transport,
            "poll": config.poll,
            "kv_warps": variant.kv_warps,
            **mailbox_constants(config),
            **options[schedule.scheme],
        },
        work=_query_work(config, chip),
        polling=config.heads if config.dcp and config.poll else 0,
    )


def _check_transport(config: Query, chip: Target) -> None:
    if config.dcp and config.transport == "multicast" and not chip.multimem:
        allowed = f"{chip.name} has no multicast stores (multimem); allowed is unicast"
        raise PlanError("transport", "multicast", allowed)


def _check_folded(config: Query, chip: Target) -> None:
    """Its rows come by multicast copies, which ptxas advises against elsewhere."""
    if form_of(config).query != "e4m3" or config.dcp:
        raise PlanError("scheme", "folded", "it is for FP8 queries without dcp: use rows")
    if chip.major not in (9, 10):
        raise PlanError("scheme", "folded", f"{chip.name} has no fast multicast copies: use rows")


def _check_wgmma(config: Query, chip: Target) -> None:
    if not chip.wgmma:
        raise PlanError("scheme", "wgmma", f"{chip.name} has no wgmma; allowed are rows, ksplit")
    if form_of(config).query != "e4m3" or stores_qc(config):
        allowed = "it is for FP8 queries that store no q_c, which it never forms"
        raise PlanError("scheme", "wgmma", allowed)


def _folded_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, warps = schedule.tokens, COMPUTE_THREADS // 32
    rows, nope = HEAD_ROWS // CLUSTER, NOPE // CLUSTER
    regions = stack(
        (
            "weights",
            rows * (2 * Q_LORA + 64),
            f"w_qb [{rows}, 1536] BF16; x [{tokens}, 1536] after",
        ),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        ("partials", warps * nope * tokens * 4, f"[{warps} warps, {nope}, {tokens}] FP32"),
        (
            "rope",
            warps * (rows - nope) * tokens * 4,
            f"[{warps} warps, {rows - nope}, {tokens}] FP32",
        ),
        ("nope", tokens * NOPE_PITCH, f"[{tokens}, 128] BF16"),
        ("sums", tokens * CLUSTER * 4, f"sums of squares [{tokens}, {CLUSTER} CTAs] FP32"),
        ("barriers", 6 * 8, "mbarriers"),
    )
    used = regions[-1].offset + regions[-1].size
    rest = Region("rest", used, _ALONE - used, "unused: keeps others off the SM")
    return (*regions, rest) if schedule.alone else regions


def _rows_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, rows, warps = schedule.tokens, HEAD_ROWS // CLUSTER, COMPUTE_THREADS // 32
    return stack(
        ("weights", rows * (2 * Q_LORA + 64), f"w_qb [{rows}, 1536] BF16"),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        ("partials", warps * tokens * rows * 4, f"[{warps} warps, {tokens}, {rows}] FP32"),
        ("nope", tokens * NOPE_PITCH, f"[{tokens}, 128] BF16"),
        ("sums", tokens * warps * 4, f"sums of squares [{tokens}, {warps} warps] FP32"),
        ("barriers", 2 * 8, "mbarriers"),
    )


def _ksplit_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, splits = schedule.tokens, schedule.k_splits
    columns = Q_LORA // splits
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
    tokens, rows, columns = schedule.tokens, HEAD_ROWS // CLUSTER * 2, Q_LORA // 2
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


def _x_slots(schedule: Schedule) -> int:
    """Chunks of 64 columns of x that lie in shared memory: all six, or as many as w_uk's place has
    room for."""
    return min(Q_LORA // schedule.k_splits // 64, _STAGED_UK // (schedule.tokens * 128))


def _wgmma_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, splits = schedule.tokens, schedule.k_splits
    rows, columns = HEAD_ROWS * splits // CLUSTER, Q_LORA // splits
    return stack(
        ("weights", rows * 2 * columns, f"w_qb [{rows}, {columns}] BF16; products, nope after"),
        ("x", _STAGED_UK, f"x [{_x_slots(schedule)} chunks, {tokens}, 64] BF16; w_uk before"),
        ("sums", tokens * 16, f"sums of squares [{tokens // splits}, 16] FP32"),
        ("w_qa", 2 * columns, f"w_qa [{columns}] BF16"),
        ("w_kva", 2 * KV_LORA, f"w_kva [{KV_LORA}] BF16"),
        ("kv", 2 * 2 * (PACKED - Q_LORA), "KV rows as they come [2 warps, 576] BF16"),
        ("barriers", 4 * 8, "mbarriers"),
    )


@dataclass(frozen=True)
class Variant:
    """A template, the shared memory that it needs under a schedule, and how many warps do nothing
    but the KV insert."""

    template: str
    smem: Callable[[Schedule], tuple[Region, ...]]
    kv_warps: int = 1


# By scheme and k_splits: which template serves a schedule.
_VARIANTS: dict[tuple[str, int], Variant] = {
    ("folded", 1): Variant("query/folded.cu.j2", _folded_smem),
    ("rows", 1): Variant("query/rows.cu.j2", _rows_smem),
    ("ksplit", 2): Variant("query/kpair.cu.j2", _kpair_smem),
    ("ksplit", 8): Variant("query/ksplit.cu.j2", _ksplit_smem),
    ("wgmma", 4): Variant("query/wgmma.cu.j2", _wgmma_smem, kv_warps=0),
}


def _query_params(config: Query) -> ParamTable:
    heads, form = config.heads, form_of(config)
    weights = (
        Array("w_qa", "bf16", (Axis(Q_LORA),), doc="q_a RMSNorm weight"),
        Array("w_kva", "bf16", (Axis(KV_LORA),), doc="kv_a RMSNorm weight"),
        Array(
            "w_qb",
            "bf16",
            (Axis(heads * HEAD_ROWS, label="heads * 192"), Axis(Q_LORA)),
            doc="Q_B, head by head",
        ),
        Array(
            "w_uk",
            "bf16",
            (Axis(heads, stride="w_uk_stride", label="heads"), Axis(NOPE), Axis(KV_LORA)),
            doc="W_UK of each head",
        ),
    )
    cache = Array(
        "cache",
        "u8",
        (Axis(stride="page_stride"), Axis(size="page_size"), Axis(form.row_bytes)),
        role="inout",
        doc="paged KV cache",
    )
    slots = Array(
        "slots", "i64", (Axis(rows=True),), align=8, doc="cache row of each token; negative: none"
    )
    scales = []
    if form.query == "e4m3":
        scales.append(Array("q_scale_inv", "f32", align=4, doc="multiplies the query"))
    if form.kv_scale:
        scales.append(Array(form.kv_scale, "f32", align=4, doc=form.kv_scale_doc))
    out = Array(
        "out",
        form.query,
        (Axis(rows=True, stride="out_stride"), Axis(heads, label="heads"), Axis(QUERY)),
        role="out",
        doc="query: 512 latent, 64 rope columns a head",
    )
    q_c = (q_c_rows(),) if stores_qc(config) else ()
    return ParamTable(
        arrays=(
            *(packed_row(), *weights, cache, slots, *scales, out, *q_c),
            *(sent_query(config, form.query) if config.dcp else ()),
        ),
        scalars=(
            *step_scalars(config.batch),
            *(sent_scalars(config) if config.dcp else ()),
        ),
    )


def _query_work(config: Query, chip: Target) -> Work:
    heads, batch, form = config.heads, config.batch, form_of(config)
    weights = 2 * (heads * (HEAD_ROWS * Q_LORA + NOPE * KV_LORA) + Q_LORA + KV_LORA)
    read = 2 * (PACKED) + 8
    written = form.row_bytes + (QUERY) * heads * itemsize(form.query)
    if stores_qc(config):
        written += 2 * Q_LORA
    mailbox = batch * config.dcp * heads * (QUERY) * itemsize(form.query)
    flops = 2 * batch * heads * (HEAD_ROWS * Q_LORA + NOPE * KV_LORA)
    moved = weights + batch * (read + written) + mailbox * (1 + config.poll)
    return work(moved, flops, chip)
