"""Trials of many kernels, side by side: how each did, as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..plan import plan
from ..runtime import nvml
from ..schema import Config
from . import cpu, gpu
from .outcome import Outcome, Trial
from .workers import Worker, results


@dataclass(frozen=True)
class Setup:
    """How kernels are tried: for the target ``arch``, on the CPU here or on the GPU, with ``seeds``
    seeds from ``seed`` on, in ``jobs`` processes. On a GPU each has a context of its own."""

    arch: str
    on_cpu: bool
    seed: int
    seeds: int
    jobs: int

    @property
    def place(self) -> str:
        """The target as outcomes name it."""
        return cpu.place(self.arch) if self.on_cpu else self.arch

    def require(self) -> None:
        """DeviceError where kernels are to run on a GPU and there is none."""
        if not self.on_cpu:
            nvml.require()


@dataclass(frozen=True)
class Task:
    """One trial: a kernel and the seed of its inputs."""

    config: Config
    seed: int
    setup: Setup


Tell = Callable[[int, int, Sequence[Worker[Task, Trial]]], None]


def run(task: Task) -> Trial:
    """The trial."""
    made = _made(task.config, task.setup)
    return cpu.trial(made, task.seed) if task.setup.on_cpu else gpu.trial(made, task.seed)


@lru_cache(maxsize=2)
def _made(config: Config, setup: Setup) -> Any:
    """The kernel, ready to run."""
    if setup.on_cpu:
        return cpu.emulate(plan(config, setup.arch))
    return gpu.load(config, setup.arch)


def outcomes(configs: Sequence[Config], setup: Setup, tell: Tell) -> Iterator[Outcome]:
    """How the kernels of ``configs``, each once, did; each when its last trial is over.

    ``tell`` is called now and then: with trials that are over, trials in all, and who is at work.
    """
    seeds = range(setup.seed, setup.seed + setup.seeds)
    tasks = [Task(config, seed, setup) for config in configs for seed in seeds]
    found: dict[Config, dict[int, Trial | Exception]] = {config: {} for config in configs}

    def at_work(workers: Sequence[Worker[Task, Trial]]) -> None:
        tell(sum(map(len, found.values())), len(tasks), workers)

    for task, result in results(run, tasks, min(setup.jobs, len(tasks)), at_work):
        mine = found[task.config]
        mine[task.seed] = result
        if len(mine) == len(seeds):
            in_order = [mine[seed] for seed in seeds]
            yield Outcome.of(task.config, setup.place, setup.seed, in_order)
