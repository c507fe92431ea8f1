"""The yardstick of timings, templates/yardstick.cu: the shortest dependent path of a step."""

from __future__ import annotations

from typing import ClassVar

from ..compiler.render import TEMPLATES
from ..plan import Array, Axis, ParamTable, Plan, Region, Scalar, Schedule
from ..plan.model import work
from ..runtime.kernel import Kernel
from ..schema import Config
from ..targets import target
from . import uncached

ROWS, COLUMNS, CLUSTER, THREADS = 8, 1536, 8, 256


class Yardstick(Config):
    """The yardstick has nothing to configure."""

    kernel: ClassVar[str] = "yardstick"


def yardstick(arch: str) -> Kernel:
    """The yardstick for ``arch``: a cluster of 8 CTAs for each of 8 rows."""
    chip = target(arch)
    plan = Plan(
        config=Yardstick(),
        target=chip,
        schedule=Schedule("yardstick", 1),
        template="yardstick.cu",
        code="yardstick",
        grid=(CLUSTER, ROWS, 1),
        cluster=CLUSTER,
        threads=THREADS,
        smem=(Region("dynamic", 0, 0, "none"),),
        params=ParamTable(
            arrays=(
                Array("x", "bf16", (Axis(rows=True), Axis(COLUMNS))),
                Array("out", "f32", (Axis(rows=True), Axis(CLUSTER)), role="out"),
            ),
            scalars=(Scalar("num_rows", "i32", default=ROWS, low=ROWS, high=ROWS),),
        ),
        constants={},
        work=work(0, 0, chip),
    )
    return uncached.handwritten(plan, (TEMPLATES / plan.template).read_text(encoding="utf-8"))
