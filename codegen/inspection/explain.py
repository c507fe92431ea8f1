"""Why a kernel is a hit or a miss: its key's fields beside those of the nearest entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..cache import installed, lookup
from ..cache.keys import Request
from ..cache.store import Cache, Entry, Problem
from ..compiler import nvrtc

if TYPE_CHECKING:
    from ..schema import Config

NONE = "none"


@dataclass(frozen=True)
class Difference:
    """A field whose value the entry does not have; texts are told by their SHA-256."""

    field: str
    expected: str
    found: str


@dataclass(frozen=True)
class Explanation:
    """What the look-up of one kernel meets. ``differences`` are those of ``nearest``."""

    slug: str
    arch: str
    key: str
    hit: str | None
    package: str | None
    problems: tuple[Problem, ...]
    nearest: Entry | None
    differences: tuple[Difference, ...]

    def data(self) -> dict[str, Any]:
        near = self.nearest
        return {
            "slug": self.slug,
            "arch": self.arch,
            "key": self.key,
            "result": "hit" if self.hit else "miss",
            "path": self.hit,
            "package": self.package,
            "problems": [f"{each.path}: {each.text}" for each in self.problems],
            "nearest": near and {"path": str(near.path), "name": near.meta["name"]},
            "differences": [asdict(each) for each in self.differences],
        }

    def text(self) -> str:
        return "\n  ".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.slug} for {self.arch}: {'hit' if self.hit else 'miss'}"
        yield f"key      {self.key}"
        if self.package:
            yield f"package  {self.package} has it and is asked before the caches"
        if self.hit:
            yield f"entry    {self.hit}"
        yield from (f"problem  {each.path}: {each.text}" for each in self.problems)
        if self.nearest:
            facts = self.nearest.meta
            yield f"nearest  {facts['name']} for {facts['arch']}, {self.nearest.path}"
        yield from (f"differs  {d.field}: {d.expected}; there {d.found}" for d in self.differences)


def explain(config: Config, arch: str, store: Cache | None = None) -> Explanation:
    """Look for the kernel as a build would, but compile, write and repair nothing."""
    request = Request.of(config, arch)
    caches = lookup.path(store)
    met = [each.get(request.key) for each in caches]
    hit = next((each for each in met if isinstance(each, Entry)), None)
    packed = installed.find(request)
    near = None if hit else _nearest(request, caches)
    return Explanation(
        config.slug,
        request.arch,
        request.key,
        str(hit.path) if hit else None,
        str(packed.package) if packed else None,
        tuple(each for each in met if isinstance(each, Problem)),
        near,
        tuple(_differences(request, near)) if near else (),
    )


def _nearest(request: Request, caches: Iterable[Cache]) -> Entry | None:
    """The entry of the same code and target, or else with the fewest fields that differ; the first
    of several in the order of look-up."""

    def distance(entry: Entry) -> tuple[bool, bool, int]:
        facts = entry.meta
        count = len(_labels(request.fields, facts["fields"]))
        return facts["name"] != request.plan.code, facts["arch"] != request.arch, count

    entries = [entry for each in caches for entry in each.entries()]
    return min(entries, key=distance, default=None)


def _labels(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    return [each for each in {**wanted, **found} if wanted.get(each) != found.get(each)]


def _differences(request: Request, entry: Entry) -> Iterator[Difference]:
    arch, there = request.arch, entry.meta
    plain = {
        "arch": (arch, there["arch"]),
        "nvrtc": (nvrtc.nvrtc_build(), there["nvrtc"]),
        "options": _without_common(nvrtc.options(arch), there["options"]),
    }
    if request.plan.code != there["name"]:
        yield Difference("code", request.plan.code, str(there["name"]))
    for label in _labels(request.fields, there["fields"]):
        hashes = [fields.get(label, NONE)[:16] for fields in (request.fields, there["fields"])]
        yield Difference(label, *plain.get(label, hashes))


def _without_common(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """The options that only one of both has; all of them where it is the order that differs."""
    if set(one) == set(other):
        return " ".join(one), " ".join(other)
    return (
        " ".join(each for each in one if each not in other) or NONE,
        " ".join(each for each in other if each not in one) or NONE,
    )
