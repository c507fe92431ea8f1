"""Which schedule a query gets: tables by target, form, heads and rows, as measured."""

from __future__ import annotations

from ..schema import Query
from ..targets import Target
from .forms import form_of, stores_qc
from .model import Schedule

FOLDED = Schedule("folded", 8, release="start")
FOLDED_ALONE = Schedule("folded", 8, alone=True, release="start")
ROWS = Schedule("rows", 8)
ROWS_START = Schedule("rows", 8, release="start")
KPAIR = Schedule("ksplit", 16, 2)
KSPLIT = Schedule("ksplit", 32, 8)
WGMMA16, WGMMA32, WGMMA64 = (Schedule("wgmma", tokens, 4) for tokens in (16, 32, 64))

# Which schedule serves a batch: the first whose bound is not below it. Of the schemes only `rows`
# fits sm_120a; the other datacenter parts have what sm_90a has without `wgmma`, until measured.
Batches = tuple[tuple[int, Schedule], ...]
_PLAIN: Batches = ((8, ROWS), (32, KPAIR), (256, KSPLIT))
SCHEDULES: dict[str, Batches] = {
    "sm_90a": _PLAIN,
    "sm_100a": _PLAIN,
    "sm_103a": _PLAIN,
    "sm_120a": ((256, ROWS),),
}

# On sm_90a without DCP, as measured on an H200 (docs/performance.md): by what the query must form,
# then by heads, the first whose bound is not below them. Clusters of up to 7 heads have an SM for
# each CTA, two grids of them side by side; of 16 and of 32 heads a grid leaves little room.
_MANY = 10**6
_WGMMA: Batches = ((16, WGMMA16), (32, WGMMA32), (256, WGMMA64))
_DENSE: tuple[tuple[int, Batches], ...] = (
    (7, ((8, FOLDED_ALONE), *_WGMMA)),
    (11, ((8, ROWS), *_WGMMA)),
    (15, ((2, FOLDED), (8, ROWS), *_WGMMA)),
    (20, ((2, ROWS_START), (8, FOLDED), (16, KPAIR), *_WGMMA)),
    (48, ((4, ROWS_START), (8, ROWS), *_WGMMA)),
    (_MANY, ((8, ROWS), *_WGMMA)),
)
_DSA_FP8: tuple[tuple[int, Batches], ...] = ((_MANY, ((8, ROWS), *_WGMMA)),)
_FORMS_QC: tuple[tuple[int, Batches], ...] = (
    (15, _PLAIN),
    (20, ((2, ROWS_START), *_PLAIN)),
    (96, ((4, ROWS_START), *_PLAIN)),
    (_MANY, _PLAIN),
)
_FORCED: dict[str, Batches] = {
    "folded": ((256, FOLDED),),
    "rows": ((256, ROWS),),
    "ksplit": ((32, KPAIR), (256, KSPLIT)),
    "wgmma": ((16, WGMMA16), (32, WGMMA32), (256, WGMMA64)),
}


def choose(config: Query, chip: Target) -> Schedule:
    """The schedule of ``config`` on ``chip``."""
    table = _FORCED.get(config.scheme) or _batches(config, chip)
    return next(schedule for bound, schedule in table if config.batch <= bound)


def _batches(config: Query, chip: Target) -> Batches:
    """What `auto` of `scheme` chooses from."""
    if chip.name != "sm_90a" or config.dcp or config.q_b_cp_async:
        return SCHEDULES[chip.name]
    fp8 = form_of(config).query == "e4m3" and not stores_qc(config)
    table = (_DSA_FP8 if config.dsa else _DENSE) if fp8 else _FORMS_QC
    return next(batches for bound, batches in table if config.heads <= bound)
