"""Kernels run on the GPU here with fresh random inputs, and judged against the reference.

All outputs are poisoned before the launches; what no expectation covers must stay so.
"""

from __future__ import annotations

import secrets
import zlib
from typing import Any

import numpy as np

from ..api import kernel
from ..runtime import nvml
from ..runtime.kernel import Kernel
from ..schema import Config, refuse_ranks
from . import families
from .outcome import Outcome, check, inside, part, poisoned
from .samples import Arrays, Rng, Sample
from .tolerance import Verdict


def verify(
    config: Config, *, seed: int | None = None, rounds: int = 1, arch: str | None = None
) -> Outcome:
    """Run the kernel of ``config`` on the GPU here, in ``rounds`` rounds of fresh inputs each.

    Raises
    ------
    DeviceError
        When there is no GPU that kgen has a target for.
    ConfigError
        When the kernel waits for other ranks.
    """
    refuse_ranks(config, "verify")
    nvml.require()
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    made = kernel(config, arch)
    salt = zlib.crc32(config.slug.encode())
    found = [trial(made, np.random.default_rng((seed, n, salt))) for n in range(rounds)]
    return Outcome.of(config, made.plan.target.name, seed, found)


def trial(made: Kernel, rng: Rng) -> tuple[Sample, dict[str, Verdict]]:
    """One round: fresh inputs, and a verdict for each output of ``made``."""
    config = made.plan.config
    family = families.of(config.kernel)
    sample = family.sample(config, rng)
    held = run(made, sample)  # before the reference, which takes its time
    return sample, check(made.plan, family.expect(config, sample), held)


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
