"""From a configuration to a cubin: the one place that decides where a cubin comes from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import settings
from .cache import installed, lookup, missing
from .cache.keys import Identity, identity
from .cache.store import Cache, Entry
from .compiler import nvrtc
from .compiler.jobs import job_count
from .compiler.nvrtc import Cubin, Resources
from .compiler.render import Source, render
from .errors import CompileError, ConfigError
from .plan import Plan, plan
from .targets import DEFAULT, Target
from .version import version

if TYPE_CHECKING:
    from .schema import Config


@dataclass(frozen=True)
class Artifact:
    """A built kernel. ``path`` is None where it could not be stored; ``seconds`` is the whole
    time from the configuration to here."""

    plan: Plan
    cubin: Cubin
    key: str
    path: Path | None
    origin: Literal["package", "cache", "compiled"]
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
        A target or setting that is not allowed, or a compile where ``KGEN_JIT`` is 0; as
        PlanError where the kernel does not fit.
    CompileError
        When NVRTC refuses the source. Nothing is stored.
    """
    started = time.perf_counter()
    planned = plan(config, arch or settings.ARCH.value() or DEFAULT)
    source = render(planned)
    cache = cache or Cache()
    _dump(source, planned.target.name)
    artifact = find(planned, source, cache, packaged) or _compiled(planned, source, cache)
    _dump(source, planned.target.name, artifact.cubin)
    artifact = replace(artifact, seconds=time.perf_counter() - started)
    _tell(artifact)
    return artifact


def find(planned: Plan, source: Source, cache: Cache, packaged: bool = True) -> Artifact | None:
    """What there is without compiling, in the order of look-up: packages, then caches."""
    if packaged and (packed := installed.find(planned, source)):
        return Artifact(planned, packed.cubin, packed.key, packed.path, "package")
    try:
        digest = identify(planned, source).key
    except CompileError:
        if settings.JIT.value():
            raise
        return None  # no NVRTC, and none is needed
    return _cached(planned, source, cache, digest)


def identify(planned: Plan, source: Source) -> Identity:
    """The fields that make the key of a kernel, the NVRTC of this process among them."""
    arch = planned.target.name
    return identity(source, arch, nvrtc.options(arch), nvrtc.nvrtc_build())


def _cached(planned: Plan, source: Source, cache: Cache, digest: str) -> Artifact | None:
    entry = lookup.find(digest, lookup.path(cache))
    if entry is None:
        return None
    cubin = _cubin(entry, source, planned.target.name)
    return Artifact(planned, cubin, digest, entry.path, "cache")


def _compiled(planned: Plan, source: Source, cache: Cache) -> Artifact:
    if not settings.JIT.value():
        raise missing.forbidden(planned, lookup.path(cache))
    fields = identify(planned, source)
    with lookup.turn(fields.key, cache):
        if found := _cached(planned, source, cache, fields.key):  # built while we waited
            return found
        cubin = nvrtc.compile(source, planned.target.name)
        facts = _facts(fields, cubin, planned, source)
        path = lookup.store(cache, fields.key, cubin.image, facts)
    return Artifact(planned, cubin, fields.key, path, "compiled")


def build_many(
    configs: Iterable[Config],
    archs: Iterable[str],
    jobs: int | None = None,
    on_done: Callable[[Result], None] = lambda result: None,
    packaged: bool = True,
) -> list[Result]:
    """Build every configuration for every target, ``jobs`` at a time.

    NVRTC compiles outside of Python's lock and in parallel, so that threads keep all cores busy
    and share one loaded compiler. A failure is that kernel's result and stops no other.
    ``on_done`` is called in the caller's thread as results come; the list is in matrix order.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    targets = tuple(archs)
    work = [(config, arch) for config in configs for arch in targets]
    with ThreadPoolExecutor(job_count(jobs)) as pool:
        futures = [pool.submit(_attempt, config, arch, packaged) for config, arch in work]
        try:
            for future in as_completed(futures):
                on_done(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _attempt(config: Config, arch: str, packaged: bool) -> Result:
    try:
        return Result(config, arch, build(config, arch, packaged=packaged))
    except Exception as error:
        return Result(config, arch, None, error)


def _cubin(entry: Entry, source: Source, arch: str) -> Cubin:
    facts = entry.meta
    resources = Resources(**facts["resources"])
    return Cubin(entry.image, source.entry, arch, facts["log"], resources, facts["seconds"])


def ptx(planned: Plan) -> str:
    """The PTX of a plan, compiled now: no cache holds it."""
    if not settings.JIT.value():
        name = f"{planned.config.slug} for {planned.target.name}"
        raise ConfigError(
            settings.JIT.name, "0", f"{name} is compiled to show its PTX; set it to 1"
        )
    return nvrtc.ptx(render(planned), planned.target.name)


def _facts(fields: Identity, cubin: Cubin, planned: Plan, source: Source) -> dict[str, Any]:
    return {
        "config": planned.config.slug,
        "arch": cubin.arch,
        "template": source.template,
        "entry": cubin.entry,
        "kgen": version(),
        "nvrtc": nvrtc.nvrtc_build(),
        "options": nvrtc.options(cubin.arch),
        "fields": dict(fields.fields),
        "resources": asdict(cubin.resources),
        "log": cubin.log,
        "seconds": round(cubin.seconds, 4),
    }


def _dump(source: Source, arch: str, cubin: Cubin | None = None) -> None:
    """Leave what there is of a kernel in the folder of ``KGEN_DUMP_DIR``."""
    folder = settings.DUMP_DIR.value()
    if folder is None:
        return
    stem = f"{Path(source.name).stem}-{arch}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if cubin:
            (folder / f"{stem}.cubin").write_bytes(cubin.image)
            return
        for name, text in ((f"{stem}.cu", source.text), *source.headers):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    except OSError as error:
        text = f"must be a folder that can be written: {error.strerror}"
        raise ConfigError(settings.DUMP_DIR.name, str(folder), text) from None


def _tell(artifact: Artifact) -> None:
    level = settings.LOG.value()
    if not level:
        return
    cubin, name = artifact.cubin, f"{artifact.plan.config.slug} {artifact.cubin.arch}"
    lines = [f"kgen: {name}: {artifact.origin} in {artifact.seconds:.3f} s, {artifact.path}"]
    if level > 1:
        lines += [f"kgen:   key {artifact.key}", f"kgen:   {cubin.resources}", cubin.log]
    print("\n".join(filter(None, lines)), file=sys.stderr)
