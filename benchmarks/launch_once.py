"""Launch query kernels of one schedule once or twice, small: what compute-sanitizer looks at.

    compute-sanitizer --tool racecheck python benchmarks/launch_once.py rows-8-1

Prints every kernel that ran. Values are not judged here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kgen.codegen import apart, api, bench, nvml, schema
from kgen.codegen.errors import NotBuiltError, PlanError

FORMS: tuple[dict[str, bool], ...] = (
    {},
    {"dsa": True},
    {"dsa": True, "fp8": True},
    {"dsa": True, "fp8": True, "nvfp4": True},
    {"dsa": True, "late": True},
    {"release": False},
)
HEADS = 2


def launch(kernel: api.Kernel) -> None:
    """Two chained launches: a full one, and one of fewer rows, some without a slot."""
    import cupy

    arrays: dict[str, Any] = bench.device_arrays(kernel.plan.params)
    slots = arrays["slots"].get()
    slots[1::3] = -1
    arrays["slots"] = cupy.asarray(slots.astype(np.int64))
    cupy.cuda.Device().synchronize()
    kernel(**arrays)
    kernel(**arrays, num_rows=max(1, kernel.plan.tokens - 3))
    cupy.cuda.Device().synchronize()


def main() -> None:
    """Run every form of the schedule that is named."""
    known = apart.schedules()
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        sys.exit(f"name a schedule: {', '.join(known)}")
    schedule = known[sys.argv[1]]
    for form in FORMS:
        fields = {"heads": HEADS, "batch": schedule.tokens + 3, **form}
        try:
            kernel = apart.forced(schema.make("query", fields), schedule, nvml.default_arch())
        except (NotBuiltError, PlanError) as error:
            print(f"not run: {form}: {error}", flush=True)
            continue
        launch(kernel)
        print(f"ran {kernel.config.slug}", flush=True)


if __name__ == "__main__":
    main()
