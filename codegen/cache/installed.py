"""Kernels that installed packages hold: found by entry point, checked before their first use.

A package names its folder under the group ``kgen.cubins``; nothing of it is imported.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..compiler.cubin import Cubin
from ..errors import CacheWarning
from ..schema import VERSION
from ..version import version
from .keys import Request

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ..plan import ParamTable

GROUP = "kgen.cubins"  # of entry points: name = folder beside the package's metadata
MANIFEST = "manifest.json"
FORMAT = 2  # of the manifest


@dataclass(frozen=True)
class Package:
    """An installed package, empty where there is a ``problem``, which says why it is not used.

    ``cubins`` has the facts of each by :attr:`Request.code`; ``kernels`` are the configurations
    and targets that it was built for, each with its cubin's code. A cubin serves other
    configurations too, if their kernels have the same source.
    """

    name: str
    version: str
    folder: Path
    cubins: Mapping[str, Mapping[str, Any]]
    kernels: Mapping[tuple[str, str], str]
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Packed:
    """A kernel as a package holds it, its checksum verified."""

    package: Package
    cubin: Cubin
    key: str
    path: Path


def find(request: Request) -> Packed | None:
    """The cubin of ``request`` from the first package that has it.

    What cannot be used is passed over, with one :class:`CacheWarning` a package and reason.
    """
    for package in installed():
        if package.problem:
            _say(package, package.problem)
        elif facts := package.cubins.get(request.code):
            try:
                return _load(package, facts, request)
            except (OSError, ValueError) as error:
                _say(package, str(error), f"{request.name} ")
            except (KeyError, TypeError) as error:
                _say(package, f"has damaged facts ({error!r})", f"{request.name} ")
        elif (request.plan.config.slug, request.arch) in package.kernels:
            _say(package, "was built from another source", f"{request.name} ")
    return None


@cache
def installed() -> tuple[Package, ...]:
    """The packages of this environment, by name: :func:`search`, once a process."""
    return search()


def search() -> tuple[Package, ...]:
    """The packages that can be imported now, by name."""
    from importlib.metadata import entry_points

    return tuple(map(_read, sorted(entry_points(group=GROUP), key=lambda point: point.name)))


def layout(params: ParamTable) -> dict[str, Any]:
    """The parameter struct of a kernel: its size, and each member with its offset, in bytes."""
    members = [
        {"name": field.name, "type": field.ctype, "offset": params.offset(field.name)}
        for field in params.fields
    ]
    return {"size": params.size, "members": members}


def layout_hash(data: Mapping[str, Any]) -> str:
    """The name of a layout."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, Any]:
    """What a package must have been built with to be used, as its manifest says it."""
    return {"format": FORMAT, "kgen": version(), "schema": VERSION}


def _read(point: EntryPoint) -> Package:
    dist = point.dist
    folder = Path(str(dist.locate_file(point.value))) if dist else Path(point.value)
    version = dist.version if dist else "?"
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        problem = _problem(manifest)
        listed = {"cubins": (), "kernels": ()} if problem else manifest
        cubins = {each["code"]: _checked(each) for each in listed["cubins"]}
        kernels = {(each["config"], each["arch"]): each["code"] for each in listed["kernels"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cubins, kernels, problem = {}, {}, f"its {MANIFEST} cannot be read ({error!r:.200})"
    return Package(point.name, version, folder, cubins, kernels, problem)


def _checked(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of a cubin; ValueError where one that is a text is none."""
    for name in ("code", "kernel", "name", "arch", "file", "checksum", "key", "params"):
        if not isinstance(facts[name], str):
            raise ValueError(f"{name}: found {facts[name]!r:.60}")
    return facts


def _problem(manifest: Mapping[str, Any]) -> str | None:
    """Why this kgen uses none of the kernels of ``manifest``, or None."""
    for name, value in versions().items():
        if manifest[name] != value:
            what = "it was built by kgen" if name == "kgen" else f"its {name} is"
            return f"{what} {manifest[name]}, this is {value}"
    return None


def _load(package: Package, facts: Mapping[str, Any], request: Request) -> Packed:
    """Read and check one cubin; ValueError says what is wrong with it."""
    if facts["params"] != layout_hash(layout(request.plan.params)):
        raise ValueError("has another parameter layout")
    path = package.folder / facts["file"]
    image = path.read_bytes()
    if (found := hashlib.sha256(image).hexdigest()) != facts["checksum"]:
        raise ValueError(f"is damaged: {path} has SHA-256 {found}, not {facts['checksum']}")
    cubin = Cubin.of(image, facts, request.plan.entry, request.arch)
    return Packed(package, cubin, facts["key"], path)


_said: set[tuple[Path, str]] = set()
_saying = Lock()


def _say(package: Package, reason: str, kernel: str = "") -> None:
    """Warn of ``reason`` once a process; ``kernel`` is the first that it is met with."""
    with _saying:
        if (package.folder, reason) in _said:
            return
        _said.add((package.folder, reason))
    remedy = "install it anew, or build it anew with kgen package"
    text = f"package {package}, not used: {kernel}{reason:.400}; {remedy}"
    warnings.warn(text, CacheWarning, stacklevel=5)


def holdings(packages: Iterable[Package]) -> Iterator[str]:
    """One line a package: what it holds, or why it is not used."""
    for package in packages:
        if package.problem:
            yield f"{package}: not used, {package.problem}"
            continue
        archs = ", ".join(dict.fromkeys(arch for _, arch in package.kernels))
        slugs = list(dict.fromkeys(slug for slug, _ in package.kernels))
        more = f" and {len(slugs) - SHOWN} more" if len(slugs) > SHOWN else ""
        yield f"{package}: {', '.join(slugs[:SHOWN])}{more}, for {archs}"


SHOWN = 8  # slugs of a package in a message
