"""Kernels run on the GPU here with fresh random inputs, and judged against the reference.

All outputs are poisoned before the launches; what no expectation covers must stay so.
"""

from __future__ import annotations

import secrets
from typing import Any

from ..api import kernel
from ..runtime import nvml
from ..runtime.kernel import Kernel
from ..schema import Config, refuse_ranks
from . import families
from .outcome import Outcome, Trial, check, inside, part, poisoned
from .samples import Arrays, Sample, fresh


def verify(
    config: Config, *, seed: int | None = None, seeds: int = 1, arch: str | None = None
) -> Outcome:
    """Run the kernel of ``config`` on the GPU here, from ``seeds`` seeds, ``seed`` the first.

    Raises
    ------
    DeviceError
        When there is no GPU that kgen has a target for.
    ConfigError
        When the kernel waits for other ranks.
    """
    first = secrets.randbelow(1 << 32) if seed is None else seed
    made = load(config, arch)
    found = [trial(made, each) for each in range(first, first + seeds)]
    return Outcome.of(config, made.plan.target.name, first, found)


def load(config: Config, arch: str | None = None) -> Kernel:
    """The kernel of ``config`` on the GPU here; raises as :func:`verify` does."""
    refuse_ranks(config, "verify")
    nvml.require()
    return kernel(config, arch)


def trial(made: Kernel, seed: int) -> Trial:
    """One seed: fresh inputs, and a verdict for each output of ``made``."""
    config = made.plan.config
    family = families.of(config.kernel)
    sample = family.sample(config, fresh(config, seed))
    held = run(made, sample)  # before the reference, which takes its time
    return Trial.of(seed, sample, check(made.plan, family.expect(made.plan, sample), held))


def run(made: Kernel, sample: Sample) -> Arrays:
    """What the outputs hold, gaps included, after the launches of ``sample``."""
    import cupy

    table = made.plan.params.arrays
    held = {name: cupy.asarray(array) for name, array in poisoned(made.plan, sample).items()}
    given = {a.name: cupy.asarray(sample.arrays[a.name]) for a in table if a.role == "in"}
    given |= {name: given[name][index] for name, index in sample.inner.items()}
    given |= {a.name: held[a.name][inside(a, sample)] for a in table if a.role != "in"}
    cupy.cuda.Device().synchronize()  # a late kernel's inputs are complete before it starts
    for rows in sample.launches:
        arguments: dict[str, Any] = {**sample.scalars, "num_rows": len(rows)}
        for array in table:
            arguments[array.name] = given[array.name][part(array, rows.start)]
        made(**arguments)
    cupy.cuda.Device().synchronize()
    return {name: array.get() for name, array in held.items()}
