"""The public calls: a configuration becomes a kernel that is called with arrays.

``kgen.query``, ``kgen.value`` and their like are made here from the families of the schema.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable
from functools import lru_cache
from os import PathLike, fspath
from typing import Any

from . import schema, settings
from .build import Artifact, Result, build, build_many
from .errors import KgenError
from .runtime import nvml
from .runtime.kernel import Kernel
from .schema import Config

Named = str | PathLike[str] | Config  # a slug, a matrix file or a configuration

_ABOUT = """{purpose}

    The kernel is packaged, cached, or compiled now. No GPU is touched before its first call.
    docs/kernels.md says what it computes, and where it rounds.

    Parameters
    ----------
    arch
        The target, such as ``sm_90a``; where None, the setting ``KGEN_ARCH``, else that of the
        first GPU here that kgen has a target for, else sm_90a.
    {fields}

    Raises
    ------
    ConfigError
        Naming the field, the value received and what is allowed.
    CompileError
        When the compiler refuses the kernel.
"""


def family(name: str) -> Callable[..., Kernel]:
    """The public call that gives kernels of the family ``name``."""

    def made(*, arch: str | None = None, **fields: Any) -> Kernel:
        return kernel(_config(name, fields), arch)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = _about(schema.model_of(name))
    return made


def _about(model: type[Config]) -> str:
    """The docstring of a family's call."""
    fields = (
        f"{option.name}\n        {option.doc}: {option.allowed}"
        f" ({'required' if option.required else f'default {option.default}'})."
        for option in schema.options(model)
    )
    return _ABOUT.format(purpose=model.__doc__, fields="\n    ".join(fields))


def _config(name: str, fields: dict[str, Any]) -> Config:
    try:
        return _made(name, **fields)
    except TypeError:  # a value that cannot be hashed is no field's
        return schema.make(name, fields)


@lru_cache(typed=True)  # 8.0 is not 8, nor True 1
def _made(name: str, /, **fields: Any) -> Config:
    return schema.make(name, fields)


def kernel(config: Config, arch: str | None = None) -> Kernel:
    """The kernel of any configuration. A process has one of each."""
    name = config, arch or default_arch()
    found = _kernels.get(name)
    if found is None:
        found = _kernels[name] = adopt(build(*name))
    return found


def default_arch() -> str:
    """The target where none is given: the setting's, else the GPU's here, else sm_90a."""
    return settings.ARCH.value() or nvml.default_arch()


def adopt(artifact: Artifact) -> Kernel:
    """The process's kernel of ``artifact``'s configuration and target, made of it if need be."""
    name = artifact.plan.config, artifact.plan.target.name
    return _kernels.setdefault(name, Kernel(artifact))


def _again(made: Kernel) -> tuple[Callable[..., Kernel], tuple[Config, str]]:
    """A kernel crosses to another process as its configuration and target."""
    return kernel, (made.config, made.plan.target.name)


copyreg.pickle(Kernel, _again)
_kernels: dict[tuple[Config, str], Kernel] = {}  # by configuration and target as asked for


def value_bmm(heads: int, batch: int, arch: str | None = None) -> bool:
    """Whether a batched GEMM and the ``gate`` kernel are faster than the ``value`` kernel.

    Read from a table of times, at the nearest shape there. For a target without times the answer is
    False, the value kernel; ``python benchmarks/value_bmm.py`` takes them on the GPU at hand.

    Parameters
    ----------
    heads, batch
        Query heads of this rank, and token rows.
    arch
        The target, such as ``sm_90a``; where None, the setting ``KGEN_ARCH``, else that of the
        first GPU here that kgen has a target for, else sm_90a.

    Raises
    ------
    ConfigError
        When ``heads``, ``batch`` or ``arch`` is none that kgen has.

    Examples
    --------
    >>> way = kgen.gate if kgen.value_bmm(heads=8, batch=64) else kgen.value
    >>> kernel = way(heads=8, batch=64)
    """
    return schema.value_bmm(heads, batch, arch or default_arch())


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
    target = arch or default_arch()
    results = build_many(_configs(plan), (target,), jobs)
    _check(results)
    kernels = tuple(adopt(result.artifact) for result in results if result.artifact)
    for device in (devices,) if isinstance(devices, int) else tuple(devices):
        for each in kernels:
            each.load(device)
    return kernels


def _configs(plan: Named | Iterable[Named]) -> tuple[Config, ...]:
    found: list[Config] = []
    for each in (plan,) if isinstance(plan, (str, PathLike, Config)) else plan:
        found += (each,) if isinstance(each, Config) else schema.select((fspath(each),), None, {})
    return tuple(dict.fromkeys(found))


def _check(results: Iterable[Result]) -> None:
    failed = [result for result in results if result.error]
    if len(failed) == 1 and failed[0].error:
        raise failed[0].error
    if failed:
        lines = (f"{result.config.slug} {result.arch}: {result.error}" for result in failed)
        raise KgenError("\n".join((f"{len(failed)} kernels could not be built", *lines)))
