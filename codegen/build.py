"""From a configuration to a cubin: the one place that decides where a cubin comes from.

A request goes down a list of sources, packages, caches, the compiler, until one answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import files, settings
from .cache import installed, lookup, missing
from .cache.keys import Request
from .cache.store import Cache
from .compiler import nvrtc
from .compiler.cubin import Cubin
from .compiler.jobs import job_count
from .compiler.render import Source, render
from .errors import CompileError, ConfigError, KgenError, MissingKernelError
from .logs import logger
from .plan import Plan
from .targets import DEFAULT, Target
from .version import version

if TYPE_CHECKING:
    from .schema import Config

Origin = Literal["package", "cache", "compiled", "shared"]


@dataclass(frozen=True)
class Artifact:
    """A built kernel. ``path`` is None where it could not be stored; ``seconds`` is the whole
    time from the configuration to here. Of kernels built together that share a cubin, all but the
    first are ``shared``."""

    plan: Plan
    cubin: Cubin
    key: str
    path: Path | None
    origin: Origin
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """One kernel of :func:`build_many`: an artifact, or the error that it ended with."""

    config: Config
    arch: str
    artifact: Artifact | None
    error: Exception | None = None


def build(
    config: Config,
    arch: str | Target | None = None,
    *,
    cache: Cache | None = None,
    packaged: bool = True,
) -> Artifact:
    """The cubin of ``config`` for ``arch``: packaged, cached, or compiled now and stored.

    Parameters
    ----------
    config
        What to build.
    arch
        The target; where None, the setting ``KGEN_ARCH``, else sm_90a.
    cache
        The cache to ask and to fill, else the one of ``KGEN_CACHE_DIR``. Those of
        ``KGEN_CACHE_PATH`` are asked after it.
    packaged
        Whether installed packages are asked first.

    Raises
    ------
    ConfigError
        A target or setting that is not allowed; as PlanError where the kernel does not fit.
    MissingKernelError
        Where nothing has it and ``KGEN_JIT`` is 0.
    CompileError
        When NVRTC refuses the source. Nothing is stored.
    """
    started = time.perf_counter()
    request = Request.of(config, arch or settings.ARCH.value() or DEFAULT)
    return _answer(request, cache or Cache(), packaged, started)


def _answer(request: Request, cache: Cache, packaged: bool, started: float) -> Artifact:
    _dump(request.source, request.arch)
    found = find(request, cache, packaged) or _compiled(request, cache)
    _dump(request.source, request.arch, found.cubin)
    artifact = replace(found, seconds=time.perf_counter() - started)
    _tell(artifact)
    return artifact


def find(request: Request, cache: Cache, packaged: bool = True) -> Artifact | None:
    """What there is without compiling, in the order of look-up: packages, then caches."""
    return (_packaged(request) if packaged else None) or _cached(request, cache)


def _packaged(request: Request) -> Artifact | None:
    packed = installed.find(request)
    if packed is None:
        return None
    return Artifact(request.plan, packed.cubin, packed.key, packed.path, "package")


def _cached(request: Request, cache: Cache) -> Artifact | None:
    try:
        key = request.key
    except CompileError:
        if settings.JIT.value():
            raise
        return None  # no NVRTC, and none is needed
    entry = lookup.find(key, lookup.path(cache))
    if entry is None:
        return None
    try:
        cubin = Cubin.of(entry.image, entry.meta, request.plan.entry, request.arch)
    except ValueError as error:
        lookup.tell(
            f"{entry.path} is not used, its facts are not those of a kernel: {error}", entry.path
        )
        return None
    return Artifact(request.plan, cubin, key, entry.path, "cache")


def _compiled(request: Request, cache: Cache) -> Artifact:
    if not settings.JIT.value():
        raise missing.forbidden(request, lookup.path(cache))
    with lookup.turn(request.key, cache):
        if found := _cached(request, cache):  # built while we waited
            return found
        cubin = nvrtc.compile(request.source, request.arch)
        path = lookup.store(cache, request.key, cubin.image, _facts(request, cubin))
    return Artifact(request.plan, cubin, request.key, path, "compiled")


def _facts(request: Request, cubin: Cubin) -> dict[str, Any]:
    return {
        "kernel": request.plan.config.kernel,
        "name": request.plan.code,
        "template": request.source.template,
        "kgen": version(),
        "nvrtc": nvrtc.nvrtc_build(),
        "options": nvrtc.options(cubin.arch),
        "fields": dict(request.fields),
        **cubin.facts,
    }


def build_many(
    configs: Iterable[Config],
    archs: Iterable[str],
    jobs: int | None = None,
    on_done: Callable[[Result], None] = lambda result: None,
    packaged: bool = True,
) -> list[Result]:
    """Build every configuration for every target, ``jobs`` at a time; what shares a cubin, once.

    NVRTC compiles outside of Python's lock and in parallel, so that threads keep all cores busy
    and share one loaded compiler. A failure is that kernel's result and stops no other.
    ``on_done`` is called in the caller's thread as results come; the list is in matrix order.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    targets = tuple(archs)
    asked = [(config, arch) for config in configs for arch in targets]
    results: dict[int, Result] = {}
    with ThreadPoolExecutor(job_count(jobs)) as pool:
        futures = {
            pool.submit(_attempt, group, packaged): numbers
            for numbers, group in _groups(asked, results, on_done)
        }
        try:
            for future in as_completed(futures):
                for number, result in zip(futures[future], future.result(), strict=True):
                    results[number] = result
                    on_done(result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[number] for number in range(len(asked))]


def _groups(
    asked: Sequence[tuple[Config, str]],
    results: dict[int, Result],
    on_done: Callable[[Result], None],
) -> Iterable[tuple[list[int], list[Request]]]:
    """Requests that share a cubin, with their places; what has no plan is a result at once."""
    groups: dict[str, tuple[list[int], list[Request]]] = {}
    for number, (config, arch) in enumerate(asked):
        try:
            request = Request.of(config, arch)
        except Exception as error:
            results[number] = Result(config, arch, None, error)
            on_done(results[number])
            continue
        numbers, group = groups.setdefault(request.code, ([], []))
        numbers.append(number)
        group.append(request)
    return groups.values()


def _attempt(group: list[Request], packaged: bool) -> list[Result]:
    """The results of requests that share a cubin: the first is answered, others get the same."""
    first, *others = group
    try:
        artifact = _answer(first, Cache(), packaged, time.perf_counter())
    except Exception as error:
        return [Result(each.plan.config, each.arch, None, error) for each in group]
    made = [artifact]
    made += [replace(artifact, plan=each.plan, origin="shared", seconds=0.0) for each in others]
    return [Result(each.plan.config, each.plan.target.name, each) for each in made]


def ptx(planned: Plan) -> str:
    """The PTX of a plan, compiled now: no cache holds it."""
    if not settings.JIT.value():
        name = f"{planned.config.slug} for {planned.target.name}"
        text = f"{name} is compiled to show its PTX; set {settings.JIT.name} to 1"
        raise MissingKernelError(text)
    return nvrtc.ptx(render(planned), planned.target.name)


def _dump(source: Source, arch: str, cubin: Cubin | None = None) -> None:
    """Leave what there is of a kernel in the folder of ``KGEN_DUMP_DIR``."""
    folder = settings.DUMP_DIR.value()
    if folder is None:
        return
    stem = f"{Path(source.name).stem}-{arch}"
    texts = ((f"{stem}.cu", source.text), *source.headers)
    dumped = {name: text.encode() for name, text in texts}
    for name, data in ({f"{stem}.cubin": cubin.image} if cubin else dumped).items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files.replace(folder / name, data)
        except (OSError, KgenError) as error:
            text = f"must be a folder that can be written: {error}"
            raise ConfigError(settings.DUMP_DIR.name, str(folder), text) from None


def _tell(artifact: Artifact) -> None:
    cubin, name = artifact.cubin, f"{artifact.plan.config.slug} {artifact.cubin.arch}"
    log = logger()
    log.info("%s: %s in %.3f s, %s", name, artifact.origin, artifact.seconds, artifact.path)
    for line in (f"key {artifact.key}", cubin.resources, *cubin.log.splitlines()):
        log.debug("  %s", line)
