"""Building and loading kernels before they are needed, so that nothing is loaded later."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath

from . import api
from .api import Kernel
from .build import Result, build_many
from .errors import KgenError
from .matrix import select
from .schema import Config

Named = str | PathLike[str] | Config  # a slug, a matrix file or a configuration


def warmup(
    plan: Named | Iterable[Named],
    *,
    arch: str | None = None,
    devices: int | Iterable[int] = 0,
    jobs: int | None = None,
) -> tuple[Kernel, ...]:
    """Get and load the kernels of ``plan``, in its order; :func:`kgen.query` then returns these.

    Call it before a capture or the first request: calls, binds and captures of these kernels on
    ``devices`` load nothing.

    Parameters
    ----------
    plan
        A matrix file, a slug or a configuration, or several of them.
    arch
        The target; where None, as :func:`kgen.query` says.
    devices
        Ordinals of the GPUs to load on; all are of the target ``arch``.
    jobs
        Parallel compiles at most.

    Raises
    ------
    KgenError
        Naming every kernel that could not be built; none is loaded then.
    DeviceError
        When a GPU or its driver cannot run a kernel.
    """
    target = arch or api.default_arch()
    results = build_many(_configs(plan), (target,), jobs)
    _check(results)
    kernels = tuple(api.adopt(result.artifact) for result in results if result.artifact)
    for device in (devices,) if isinstance(devices, int) else tuple(devices):
        for kernel in kernels:
            kernel.load(device)
    return kernels


def _configs(plan: Named | Iterable[Named]) -> tuple[Config, ...]:
    found: list[Config] = []
    for each in (plan,) if isinstance(plan, (str, PathLike, Config)) else plan:
        found += (each,) if isinstance(each, Config) else select((fspath(each),), None, {})
    return tuple(dict.fromkeys(found))


def _check(results: Iterable[Result]) -> None:
    failed = [result for result in results if result.error]
    if len(failed) == 1 and failed[0].error:
        raise failed[0].error
    if failed:
        lines = (f"{result.config.slug} {result.arch}: {result.error}" for result in failed)
        raise KgenError("\n".join((f"{len(failed)} kernels could not be built", *lines)))
