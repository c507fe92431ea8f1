"""What a build says on stderr while it runs: one line a kernel, then the summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from .flags import is_quiet

if TYPE_CHECKING:
    from ..build import Result

COLORS = {
    "compiled": "green",
    "cache": "cyan",
    "package": "cyan",
    "shared": "cyan",
    "failed": "red",
}


@dataclass(frozen=True)
class Summary:
    """The closing count of a build."""

    built: int
    cached: int
    failed: int
    seconds: float
    packaged: int = 0
    shared: int = 0

    def __str__(self) -> str:
        packaged = f"{self.packaged} packaged, " if self.packaged else ""
        shared = f"{self.shared} of the same code, " if self.shared else ""
        counts = f"{packaged}{self.built} built, {self.cached} cached, {shared}{self.failed} failed"
        return f"{counts} in {self.seconds:.2f} s"

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 4)}


def summary(results: Iterable[Result], seconds: float) -> Summary:
    """Count ``results``."""
    kinds = [_kind(result) for result in results]
    names = ("compiled", "cache", "failed", "package", "shared")
    built, cached, failed, packaged, shared = map(kinds.count, names)
    return Summary(built, cached, failed, seconds, packaged, shared)


@contextmanager
def narration(total: int) -> Iterator[Callable[[Result], None]]:
    """A callback that tells of each result: on a terminal above a progress bar, else plainly."""
    if is_quiet():
        yield lambda result: None
        return
    if not sys.stderr.isatty():
        yield lambda result: click.echo(f"{_kind(result):<8} {_line(result)}", err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
    from rich.text import Text

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def tell(result: Result) -> None:
            kind = _kind(result)
            line = Text.assemble((f"{kind:<8}", COLORS[kind]), " ", _line(result))
            progress.console.print(line, soft_wrap=True)
            progress.advance(task)

        yield tell


def _kind(result: Result) -> str:
    return result.artifact.origin if result.artifact else "failed"


def _line(result: Result) -> str:
    name = f"{result.config.slug} {result.arch}"
    if result.artifact and result.artifact.origin == "shared":
        return f"{name} is {result.artifact.plan.code}"
    if result.artifact:
        return f"{name} {result.artifact.seconds:.3f} s"
    return f"{name}\n{result.error}"
