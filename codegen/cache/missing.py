"""What to say of a kernel that is nowhere while compiling is forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .. import settings
from ..errors import ConfigError
from ..schema import parse_slug
from . import installed

if TYPE_CHECKING:
    from ..plan import Plan
    from ..schema import Config
    from .store import Cache


def forbidden(planned: Plan, caches: Iterable[Cache]) -> ConfigError:
    """The error that says where ``planned`` was looked for, what is nearest and what to do."""
    slug, arch = planned.config.slug, planned.target.name
    caches = tuple(caches)
    packages = installed.installed()
    lines = (
        f"{slug} for {arch} is in no package and no cache, and compiling is forbidden",
        *(f"package searched: {line}" for line in installed.holdings(packages)),
        *(() if packages else ("packages searched: none is installed",)),
        f"caches searched: {', '.join(str(cache.root) for cache in caches)}",
        _nearest(planned, [*_packaged(packages), *_cached(caches)]),
        f"to fix: kgen package {slug} --arch {arch}, and install the wheel; or kgen build {slug}"
        f" --arch {arch}; or set {settings.JIT.name} to 1",
    )
    return ConfigError(settings.JIT.name, "0", "\n  ".join(lines))


def _packaged(packages: Iterable[installed.Package]) -> Iterator[tuple[str, str, str]]:
    for package in packages:
        yield from ((slug, arch, f"package {package}") for slug, arch in package.kernels)


def _cached(caches: Iterable[Cache]) -> Iterator[tuple[str, str, str]]:
    for cache in caches:
        for entry in cache.entries():
            yield str(entry.meta["config"]), str(entry.meta["arch"]), f"cache {cache.root}"


def _nearest(planned: Plan, entries: Iterable[tuple[str, str, str]]) -> str:
    """The entry of the same family with the fewest differences, the target counting most."""
    near = [
        (_distance(planned.config, other) + 100 * (arch != planned.target.name), slug, arch, place)
        for slug, arch, place in entries
        if (other := _config(slug)) and other.kernel == planned.config.kernel
    ]
    if not near:
        return f"nearest entry: no {planned.config.kernel} kernel is anywhere"
    _, slug, arch, place = min(near)
    return f"nearest entry: {slug} for {arch}, in {place}"


def _config(slug: str) -> Config | None:
    try:
        return parse_slug(slug)
    except ConfigError:
        return None


def _distance(one: Config, other: Config) -> float:
    """How many fields differ; numbers that are close differ by less."""
    return sum(map(_difference, dict(one).values(), dict(other).values()))


def _difference(one: object, other: object) -> float:
    if one == other:
        return 0
    if isinstance(one, bool) or not isinstance(one, int) or not isinstance(other, int):
        return 1
    return abs(one - other) / (1 + abs(one) + abs(other))
