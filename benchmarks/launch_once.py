"""Launch kernels of one schedule or family once or twice, small: what compute-sanitizer looks at.

    compute-sanitizer --tool racecheck python benchmarks/launch_once.py rows-8-1

Prints every kernel that ran. Values are not judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kgen.codegen import api, schema
from kgen.codegen.bench import timing, uncached
from kgen.codegen.dcp.layout import Shape
from kgen.codegen.dcp.mailboxes import Mailboxes
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import Schedule, plan
from kgen.codegen.plan.index_front import VARIANTS, schedule_of
from kgen.codegen.plan.mailbox import query_dtype
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Kernel
from kgen.codegen.targets import DEFAULT

FORMS: tuple[dict[str, bool], ...] = (
    {},
    {"dsa": True},
    {"dsa": True, "fp8": True},
    {"dsa": True, "fp8": True, "nvfp4": True},
    {"dsa": True, "late": True},
    {"release": False},
)
HEADS = 2
OTHERS = ("query_norm-b19", "value-h2-b20-q4", "value-h2-b19-no_release", "gate-h2-b20-q4")
FRONTS = ("index_front-b35", "index_front-b35-mx", "index_front-b35-fp4")
RANKS = (
    *(f"query-h2-b{rows}-dcp2-transport.unicast" for rows in (19, 35)),
    *(
        f"query-h2-b11-scheme.rows-dcp2{form}-transport.unicast"
        for form in ("", "-dsa", "-no_poll")
    ),
    *("query_wait-h2-b7-dcp2", "dcp_value-h2-b20-q4-dcp2"),
)
FRONT_TOKENS = 32  # of a CTA: two tiles of 35 rows

Case = tuple[schema.Config, Schedule | None]


def cases() -> dict[str, list[Case]]:
    """What there is to launch, by name: the query's schedules in all forms, the other schema."""
    found: dict[str, list[Case]] = {}
    for name, schedule in uncached.schedules().items():
        shape = {"heads": HEADS, "batch": schedule.tokens + 3}
        made = [(schema.make("query", shape | form), schedule) for form in FORMS]
        found[name] = [(config, cut) for config, cut in made if _fits(config, cut)]
    for slug in OTHERS:
        config = schema.parse_slug(slug)
        found.setdefault(config.kernel, []).append((config, None))
    for scheme in VARIANTS:
        schedule = schedule_of(scheme, FRONT_TOKENS)
        found[f"index_front-{scheme}"] = [(schema.parse_slug(slug), schedule) for slug in FRONTS]
    found["dcp"] = [(schema.parse_slug(slug), None) for slug in RANKS]
    return found


def _fits(config: schema.Config, schedule: Schedule) -> bool:
    """Whether a schedule serves a form."""
    try:
        plan(config, DEFAULT, schedule)
    except ConfigError:
        return False
    return True


def launch(kernel: Kernel) -> None:
    """Two chained launches: a full one, and one of fewer rows; some have no slot or no length."""
    import cupy

    arrays: dict[str, Any] = timing.device_arrays(kernel.plan.params)
    for name in {"slots", "lengths"} & arrays.keys():  # some rows have none, or are empty
        values = arrays[name].get()
        values[1::3] = -1
        arrays[name] = cupy.asarray(values)
    config: Any = kernel.config
    boxes = mailboxes(config) if getattr(config, "dcp", 0) else []
    for rows in (config.batch, max(1, kernel.plan.tokens - 3)):
        more = come(boxes, kernel) if boxes else {}
        cupy.cuda.Device().synchronize()
        kernel(**arrays | more, num_rows=min(rows, config.batch))
        cupy.cuda.Device().synchronize()


def mailboxes(config: Any) -> list[Mailboxes]:
    """Of all ranks, on this GPU."""
    wide = query_dtype(config) == "bf16"
    return Mailboxes.of_ranks(Shape(config.dcp, config.heads, 64, bf16=wide))


def come(boxes: list[Mailboxes], kernel: Kernel) -> dict[str, Any]:
    """Rank 0's mailboxes, in which all has come that it polls for."""
    box = boxes[0]
    for name in ("mailbox", "partials", "lse_box"):
        box.view(name, 0)[...] = 0
    return box.arguments(kernel, 0)


def kernels(listed: list[Case]) -> Iterator[Kernel]:
    """The kernels of cases; what cannot be built is said."""
    arch = nvml.default_arch()
    for config, schedule in listed:
        try:
            yield uncached.forced(config, schedule, arch) if schedule else api.kernel(config, arch)
        except ConfigError as error:
            print(f"not run: {config.slug}: {error}", flush=True)


def main() -> None:
    """Run every kernel of the schedule or family that is named."""
    known = cases()
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        sys.exit(f"name a schedule: {', '.join(known)}")
    for kernel in kernels(known[sys.argv[1]]):
        launch(kernel)
        print(f"ran {kernel.config.slug}", flush=True)


if __name__ == "__main__":
    main()
