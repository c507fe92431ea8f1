"""From a configuration and a target to a plan: grid, cluster, shared memory, parameters, work.

Pure arithmetic: no device is asked. The kernel's template sees exactly :attr:`Plan.context`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from .arch import DEFAULT, SMEM_RESERVED, Target
from .arch import target as find_target
from .errors import NotBuiltError, PlanError
from .params import Array, Axis, ParamTable, Scalar
from .schema import Config, Query, options

LORA, KV, NOPE, ROPE = 1536, 512, 128, 64
HEAD_ROWS = NOPE + ROPE
CLUSTER = 8
COMPUTE_THREADS, KV_THREADS = 256, 32
UK_BYTES = NOPE * 2 * KV // CLUSTER  # w_uk's 64 columns of a CTA
NOPE_PITCH = 2 * NOPE + 16
MMA_ROWS = 16  # tokens of one step of the ksplit scheme


@dataclass(frozen=True)
class Region:
    """A piece of a CTA's dynamic shared memory, in bytes."""

    name: str
    offset: int
    size: int
    doc: str = ""


@dataclass(frozen=True)
class Work:
    """What one launch must move and compute at least, and the seconds that implies."""

    bytes: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class Schedule:
    """How the work is cut: the scheme, token rows a CTA, and the CTAs that split K."""

    scheme: str
    tokens: int
    k_splits: int = 1


@dataclass(frozen=True)
class Plan:
    """All that is known of a kernel before its source is rendered.

    ``grid`` counts CTAs, ``cluster`` those along x that form a cluster, ``threads`` those of a CTA;
    ``smem`` maps the dynamic shared memory.
    """

    config: Config
    target: Target
    schedule: Schedule
    template: str
    entry: str
    grid: tuple[int, int, int]
    cluster: int
    threads: int
    smem: tuple[Region, ...]
    params: ParamTable
    work: Work

    @property
    def scheme(self) -> str:
        return self.schedule.scheme

    @property
    def tokens(self) -> int:
        return self.schedule.tokens

    @property
    def k_splits(self) -> int:
        return self.schedule.k_splits

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory a block, in bytes."""
        return max(region.offset + region.size for region in self.smem)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that shared memory lets an SM hold, at most the two that hide a prologue."""
        return min(2, self.target.smem_per_sm // (self.smem_bytes + SMEM_RESERVED))

    @property
    def context(self) -> dict[str, Any]:
        """Every name that the template may use, with its value."""
        schedule: dict[str, Any] = {
            "rows": {"q_b_cp_async": self.config.q_b_cp_async},
            "ksplit": {"k_splits": self.k_splits},
        }[self.scheme]
        return {
            "slug": self.config.slug,
            "entry": self.entry,
            "fields": self.params.fields,
            "params_size": self.params.size,
            "num_heads": self.config.heads,
            "num_tokens": self.tokens,
            "cluster_size": self.cluster,
            "num_threads": self.threads,
            "ctas_per_sm": self.ctas_per_sm,
            "release": self.config.release,
            **schedule,
            **{f"smem_{region.name}": region.offset for region in self.smem},
        }


# Which schedule serves a batch: the first whose bound is not below it. Measured on an H200
# (docs/performance.md); the same elsewhere until measured there.
_HOPPER: tuple[tuple[int, Schedule], ...] = (
    (8, Schedule("rows", 8)),
    (16, Schedule("ksplit", 16, 2)),
    (256, Schedule("ksplit", 32, 2)),
)
SCHEDULES: dict[str, tuple[tuple[int, Schedule], ...]] = {
    name: _HOPPER for name in ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
}


def plan(config: Config, arch: str | Target = DEFAULT, schedule: Schedule | None = None) -> Plan:
    """The plan of ``config`` on ``arch``; ``schedule`` overrides the target's table.

    Raises
    ------
    NotBuiltError
        When this version builds no kernel for a field's value.
    PlanError
        When the kernel does not fit the target; the message has both numbers.
    """
    chip = arch if isinstance(arch, Target) else find_target(arch)
    _check_built(config)
    made = _PLANNERS[type(config)](config, chip, schedule)
    if made.smem_bytes > chip.smem_per_block:
        raise PlanError(
            "arch",
            chip.name,
            f"{config.slug} (scheme {made.scheme}) needs {made.smem_bytes:,} bytes of shared memory "
            f"a block, {chip.name} has {chip.smem_per_block:,}",
        )
    return made


# Fields whose kernels do not exist yet: any value but the default is refused in plain words.
NOT_BUILT: dict[type[Config], tuple[str, ...]] = {
    Query: ("dcp", "dsa", "fp8", "nvfp4", "late", "store_qc", "poll", "transport", "q_heads"),
}  # fmt: skip


def _check_built(config: Config) -> None:
    for option in options(type(config)):
        value = getattr(config, option.name)
        if option.name in NOT_BUILT.get(type(config), ()) and value != option.default:
            raise NotBuiltError(
                option.name, value, f"not built yet: this version has only {option.default!r}"
            )


def _choose(config: Query, chip: Target) -> Schedule:
    table = SCHEDULES[chip.name]
    if config.scheme == "rows":
        return Schedule("rows", 8)
    for bound, schedule in table:
        if config.batch <= bound and config.scheme in ("auto", schedule.scheme):
            return schedule
    raise AssertionError(f"the table of {chip.name} ends before batch {config.batch}")


def _plan_query(config: Query, chip: Target, schedule: Schedule | None) -> Plan:
    schedule = schedule or _choose(config, chip)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template=f"query_{schedule.scheme}.cu.j2",
        entry="kgen_" + config.slug.replace("-", "_").replace(".", "_"),
        grid=(CLUSTER, config.heads, ceil(config.batch / schedule.tokens)),
        cluster=CLUSTER,
        threads=COMPUTE_THREADS + KV_THREADS,
        smem=_SMEM[schedule.scheme](schedule),
        params=_query_params(config),
        work=_query_work(config, chip),
    )


def _stack(*pieces: tuple[str, int, str]) -> tuple[Region, ...]:
    """Regions one after the other, each at a multiple of 128 bytes where the last one ended."""
    regions: list[Region] = []
    for name, size, doc in pieces:
        start = regions[-1].offset + regions[-1].size if regions else 0
        regions.append(Region(name, start, -(-size // 16) * 16, doc))
    return tuple(regions)


def _rows_smem(schedule: Schedule) -> tuple[Region, ...]:
    tokens, rows, warps = schedule.tokens, HEAD_ROWS // CLUSTER, COMPUTE_THREADS // 32
    return _stack(
        ("weights", rows * (2 * LORA + 64), f"w_qb [{rows}, 1536] BF16"),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        ("partials", warps * tokens * rows * 4, f"[{warps} warps, {tokens}, {rows}] FP32"),
        ("nope", tokens * NOPE_PITCH, f"[{tokens}, 128] BF16"),
        ("sums", tokens * warps * 4, f"sums of squares [{tokens}, {warps} warps] FP32"),
        ("barriers", 2 * 8, "mbarriers"),
    )


def _ksplit_smem(schedule: Schedule) -> tuple[Region, ...]:
    step, splits = MMA_ROWS, schedule.k_splits
    rows, columns, warps = HEAD_ROWS // CLUSTER * splits, LORA // splits, COMPUTE_THREADS // 32
    return _stack(
        ("weights", rows * (2 * columns + 64), f"w_qb [{rows}, {columns}] BF16"),
        ("w_qa", 2 * columns, f"w_qa [{columns}] BF16"),
        ("uk", UK_BYTES, "w_uk [128, 64] BF16"),
        ("partials", warps // 2 * step * rows * 4, f"[{warps // 2} warps, {step}, {rows}] FP32"),
        ("received", step * rows // splits * 4, f"the peer's sums [{step}, {rows // splits}] FP32"),
        ("nope", step * NOPE_PITCH, f"[{step}, 128] BF16"),
        ("sums", step * (warps + splits) * 4, f"sums of squares [{warps} warps + {splits}, {step}]"),
        ("barriers", 5 * 8, "mbarriers"),
    )


_SMEM: dict[str, Callable[[Schedule], tuple[Region, ...]]] = {
    "rows": _rows_smem,
    "ksplit": _ksplit_smem,
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
                (
                    Axis(stride="page_stride"),
                    Axis(size="page_size"),
                    Axis(KV + ROPE),
                ),
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
    return Work(moved, flops, max(moved / chip.bandwidth, flops / chip.flops))


_PLANNERS: Mapping[type[Config], Callable[[Any, Target, Schedule | None], Plan]] = {
    Query: _plan_query
}
