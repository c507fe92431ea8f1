"""``kgen verify``: kernels run with fresh inputs, and judged against the reference."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ..errors import DeviceError, KgenError
from .base import ConfigCommand, as_json, exit_code, print_json, target_names
from .flags import is_quiet, narrate
from .status import Status

if TYPE_CHECKING:
    from ..schema import Config
    from ..verify.outcome import Outcome, Trial
    from ..verify.runs import Setup, Task
    from ..verify.workers import Worker


@click.command(cls=ConfigCommand)
@click.option("--seed", type=click.IntRange(min=0), help="repeat the inputs of an earlier run")
@click.option(
    "--seeds", type=click.IntRange(min=1), help="how many [default: 2 on the CPU, 1 on a GPU]"
)
@click.option("--cpu", is_flag=True, help="run on the CPU, every access checked; needs g++ only")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="processes [default: all cores on the CPU, 1 on a GPU]",
)
@as_json
@click.pass_context
def verify(
    ctx: click.Context,
    configs: tuple[Config, ...],
    seed: int | None,
    seeds: int | None,
    cpu: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Run kernels on the GPU here, or on the CPU, with fresh inputs, and judge them against the
    reference.

    Results come as kernels are done. One that fails takes none of the others along.
    """
    from ..compiler.jobs import job_count
    from ..verify.runs import Setup

    start = time.perf_counter()
    setup = Setup(
        arch=target_names(())[0],
        on_cpu=cpu,
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        seeds=seeds or 1 + cpu,
        jobs=job_count(jobs) if cpu else jobs or 1,
    )
    found: list[Outcome] = []
    for outcome in _outcomes(configs, setup, singly=as_json):
        if not as_json:
            click.echo(("\n" if found else "") + outcome.text())
        found.append(outcome)
    if as_json:
        order = [config.slug for config in configs]
        found.sort(key=lambda outcome: order.index(outcome.slug))
        print_json([outcome.data() for outcome in found])
    narrate(_summary(found, time.perf_counter() - start))
    ctx.exit(exit_code(map(_error, found)))


def _outcomes(configs: Sequence[Config], setup: Setup, singly: bool) -> Iterator[Outcome]:
    """How kernels did, as they come, with a line about those at work. Where there is no GPU they
    all fail: each by itself if ``singly``, else with one error."""
    from ..verify import runs
    from ..verify.outcome import Outcome

    try:
        setup.require()
    except DeviceError as error:
        hint = DeviceError(f"{error}; with --cpu kernels run without one")
        if not singly:
            raise hint from None
        yield from (Outcome.of(config, setup.place, setup.seed, [hint]) for config in configs)
        return
    status = Status(quiet=is_quiet())

    def tell(over: int, total: int, workers: Sequence[Worker[Task, Trial]]) -> None:
        running = ", ".join(f"{w.task.config.slug} seed {w.task.seed}" for w in workers)
        status.show(f"{over} of {total} done; {running}")

    for outcome in runs.outcomes(configs, setup, tell):
        status.clear()
        yield outcome


def _error(outcome: Outcome) -> Exception | None:
    """What an outcome fails by."""
    return next(iter(outcome.errors), None if outcome.right else KgenError("wrong"))


def _summary(found: Sequence[Outcome], seconds: float) -> str:
    right, wrong, failed = (
        sum(map(bool, each))
        for each in zip(*((o.right, o.wrong, o.errors) for o in found), strict=True)
    )
    return f"{right} right, {wrong} wrong, {failed} failed in {seconds:.1f} s"
