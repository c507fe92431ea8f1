"""What to say of a kernel that is nowhere while compiling is forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import settings
from ..compiler import nvrtc
from ..errors import CompileError, MissingKernelError
from . import installed

if TYPE_CHECKING:
    from ..plan import Plan
    from .keys import Request
    from .store import Cache


def forbidden(request: Request, caches: Iterable[Cache]) -> MissingKernelError:
    """The error that says where a kernel was looked for, what is nearest and what to do."""
    slug, arch = request.plan.config.slug, request.arch
    caches = tuple(caches)
    packages = installed.installed()
    lines = (
        f"{slug} for {arch} is in no package and no cache, and compiling is forbidden",
        *(f"package searched: {line}" for line in installed.holdings(packages)),
        *(() if packages else ("packages searched: none is installed",)),
        f"caches searched: {', '.join(str(cache.root) for cache in caches)}",
        *_compilers(request, caches),
        _nearest(request.plan, [*_packaged(packages), *_cached(caches)]),
        f"to fix: kgen package {slug} --arch {arch}, and install the wheel; or kgen build {slug}"
        f" --arch {arch}; or set {settings.JIT.name} to 1",
    )
    return MissingKernelError("\n  ".join(lines))


def _compilers(request: Request, caches: Iterable[Cache]) -> Iterator[str]:
    """Why no cache can answer: a cubin is looked for by the compiler that made it."""
    held = [entry.meta for cache in caches for entry in cache.entries()]
    theirs = {
        facts["nvrtc"] for facts in held if request.content.items() <= facts["fields"].items()
    }
    try:
        here = nvrtc.nvrtc_build()
    except CompileError:
        yield "NVRTC is missing, so that caches cannot be searched; packages can"
        return
    for build in sorted(theirs - {here}):
        yield f"a cache has it, built by another NVRTC ({build}, here {here})"


@dataclass(frozen=True)
class _Held:
    """Machine code that is somewhere: its family, name, target and place."""

    kernel: str
    code: str
    arch: str
    place: str

    @classmethod
    def of(cls, facts: Mapping[str, Any], place: str) -> _Held:
        kernel, code, arch = (str(facts[name]) for name in ("kernel", "name", "arch"))
        return cls(kernel, code, arch, place)

    def distance(self, planned: Plan) -> tuple[bool, int]:
        """How far it is from a plan: the target counts most, then the parts of the name."""
        parts = set(self.code.split("_")) ^ set(planned.code.split("_"))
        return self.arch != planned.target.name, len(parts)


def _packaged(packages: Iterable[installed.Package]) -> Iterator[_Held]:
    for package in packages:
        yield from (_Held.of(facts, f"package {package}") for facts in package.cubins.values())


def _cached(caches: Iterable[Cache]) -> Iterator[_Held]:
    for cache in caches:
        yield from (_Held.of(entry.meta, f"cache {cache.root}") for entry in cache.entries())


def _nearest(planned: Plan, held: Iterable[_Held]) -> str:
    """What is nearest among the code of the same family."""
    kernel = planned.config.kernel
    near = [each for each in held if each.kernel == kernel]
    if not near:
        return f"nearest entry: no {kernel} kernel is anywhere"
    found = min(near, key=lambda each: (*each.distance(planned), each.code, each.place))
    return f"nearest entry: {found.code} for {found.arch}, in {found.place}; here {planned.code}"
