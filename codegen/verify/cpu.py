"""Kernels run on the CPU with random inputs and schedules, and judged as on a GPU."""

from __future__ import annotations

import secrets
from typing import Any

from ..emulator import executor
from ..emulator.executor import Emulated
from ..emulator.kernel import Emulation
from ..errors import EmulationError
from ..plan import Plan, plan
from ..schema import Config
from . import families, ranks
from .outcome import Outcome, Trial, check, inside, part, poisoned
from .samples import Arrays, Sample, fresh

ROWS = 8  # of a sample, about
SEEDS = 2  # one of lazy, one of eager completion


def verify(
    config: Config, *, seed: int | None = None, seeds: int = SEEDS, arch: str = "sm_90a"
) -> Outcome:
    """Run the kernel of ``config`` on the CPU here, from ``seeds`` seeds, ``seed`` the first.

    Each has fresh inputs and a schedule of its own. Asynchronous work completes as late as it may
    with an even seed, at random moments with an odd one. With ``dcp`` all ranks run here at once.

    Raises
    ------
    EmulationError
        When the kernel does what the hardware does not promise.
    DeviceError
        When there is no g++ 12 or newer.
    """
    first = secrets.randbelow(1 << 32) if seed is None else seed
    made = emulate(plan(config, arch))
    found = [trial(made, each) for each in range(first, first + seeds)]
    return Outcome.of(config, place(arch), first, found)


def place(arch: str) -> str:
    """The target ``arch`` as outcomes name it."""
    return f"{arch} on the CPU"


def emulate(made: Plan) -> Emulation | Emulated:
    """The kernel of a plan for the CPU: for all ranks at once where it is of several."""
    return executor.emulate(made) if getattr(made.config, "dcp", 0) else Emulation(made)


def trial(made: Emulation | Emulated, seed: int) -> Trial:
    """One seed: fresh inputs, and a verdict for each output of ``made``."""
    config = made.plan.config
    rng = fresh(config, seed)
    try:
        if isinstance(made, Emulated):
            return ranks.trial(made, rng, seed)
        family = families.of(config.kernel)
        sample = family.sample(config, rng, ROWS)
        held = run(made, sample, seed)
    except EmulationError as error:
        again = f"kgen verify {config.slug} --cpu --seed {seed} --seeds 1"
        raise EmulationError(f"{error}\n  again: {again}") from None
    return Trial.of(seed, sample, check(made.plan, family.expect(made.plan, sample), held))


def run(made: Emulation, sample: Sample, seed: int) -> Arrays:
    """What the outputs hold, gaps included, after the launches of ``sample``."""
    table = made.plan.params.arrays
    held = poisoned(made.plan, sample)
    given = {a.name: sample.view(a.name) for a in table if a.role == "in"}
    given |= {a.name: held[a.name][inside(a, sample)] for a in table if a.role != "in"}
    for rows in sample.launches:
        arguments: dict[str, Any] = {**sample.scalars, "num_rows": len(rows)}
        arguments |= {a.name: given[a.name][part(a, rows.start)] for a in table}
        made(**arguments, seed=seed, lazy=seed % 2 == 0)
    return held
