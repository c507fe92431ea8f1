"""Kernels beside the pipeline, compiled now and stored nowhere: other schedules than the target's
table gives, and sources that no template renders."""

from __future__ import annotations

from ..build import Artifact
from ..compiler.nvrtc import compile
from ..compiler.render import Source, headers, render
from ..plan import Plan, Schedule, plan
from ..runtime.kernel import Kernel
from ..schema import Config, make
from ..targets import DEFAULT, target


def kernel(made: Plan, source: Source | None = None) -> Kernel:
    """The kernel of a plan, from ``source`` or else from its template."""
    cubin = compile(source or render(made), made.target.name)
    return Kernel(Artifact(made, cubin, "", None, "compiled", cubin.seconds))


def forced(config: Config, schedule: Schedule, arch: str = DEFAULT) -> Kernel:
    """The kernel of ``config`` under a schedule that its plan need not choose."""
    return kernel(plan(config, arch, schedule))


def handwritten(made: Plan, text: str) -> Kernel:
    """The kernel of a plan and of CUDA source in which nothing is rendered."""
    return kernel(made, Source(made.template, made.template, made.entry, text, headers(text)))


def schedules(arch: str = DEFAULT) -> dict[str, Schedule]:
    """Every schedule that some batch or scheme of the query kernel leads to, by name."""
    found: dict[str, Schedule] = {}
    for scheme in ("auto", "folded", "rows", "ksplit", *(("wgmma",) if target(arch).wgmma else ())):
        for batch in (1, 8, 16, 32, 64, 128, 256):
            config = make("query", {"heads": 1, "batch": batch, "scheme": scheme})
            schedule = plan(config, arch).schedule
            found[name(schedule)] = schedule
    return found


def name(schedule: Schedule) -> str:
    """A schedule in few words: ``ksplit-32-8`` is 32 tokens a CTA, K split 8 ways."""
    return f"{schedule.scheme}-{schedule.tokens}-{schedule.k_splits}"
