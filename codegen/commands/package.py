"""The commands ``package`` and ``coverage``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..tables import aligned
from .base import ConfigCommand, arch_option, as_json, exit_code, folder_option, print_json
from .flags import narrate

if TYPE_CHECKING:
    from ..build import Artifact
    from ..schema import Config, Refused


@click.command(cls=ConfigCommand)
@arch_option
@click.option("--jobs", type=click.IntRange(min=1), help="parallel compiles at most")
@click.option(
    "--format",
    "form",
    type=click.Choice(["wheel", "header"]),
    default="wheel",
    show_default=True,
    help="header: a C header with a launch table, and a C file with the cubins",
)
@click.option("--name", default="kgen-cubins", show_default=True, help="of the package")
@click.option("--package-version", metavar="VERSION", help="[default: kgen's own]")
@folder_option
@as_json
@click.pass_context
def package(
    ctx: click.Context,
    configs: tuple[Config, ...],
    archs: tuple[str, ...],
    jobs: int | None,
    form: str,
    name: str,
    package_version: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Build kernels ahead of time into a wheel that kgen finds once it is installed.

    The same kernels give the same bytes. Nothing is written unless every kernel is built; FOLDER
    is where to, by default the current one.
    """
    from .. import build
    from ..aot.wheel import Label, manifest
    from ..cache.installed import versions
    from . import progress

    start = time.perf_counter()
    label = Label(name, package_version or versions()["kgen"])
    with progress.narration(len(configs) * len(archs)) as tell:
        results = build.build_many(configs, archs, jobs, tell, packaged=False)
    narrate(progress.summary(results, time.perf_counter() - start))
    if code := exit_code(result.error for result in results):
        narrate("nothing was written")
        ctx.exit(code)
    made = [result.artifact for result in results if result.artifact]
    paths = _write(made, label, form, output or Path())
    if as_json:
        print_json({"files": [str(path) for path in paths], "manifest": manifest(made)})
        return
    for path in paths:
        click.echo(f"{path}  {path.stat().st_size:,} bytes")


def _write(made: list[Artifact], label: Any, form: str, folder: Path) -> list[Path]:
    from .. import files
    from ..aot import c_header, wheel

    if form == "wheel":
        contents = {label.file: wheel.wheel(made, label)}
    else:
        contents = {name: text.encode() for name, text in c_header.files(made, label).items()}
    for name, data in contents.items():
        files.replace(folder / name, data)
    return [folder / name for name in contents]


class SurveyCommand(ConfigCommand):
    """A command that is told of what no configuration can be, too."""

    skips = False

    def make(self, kernel: str, fields: Mapping[str, Any]) -> Any:
        from ..schema import attempt

        return attempt(kernel, fields)


@click.command(cls=SurveyCommand)
@arch_option
@as_json
@click.pass_context
def coverage(
    ctx: click.Context, configs: tuple[Config | Refused, ...], archs: tuple[str, ...], as_json: bool
) -> None:
    """Tell where each kernel would come from: a package, a cache, or the compiler.

    Compiles nothing; fails if any kernel would have to be compiled.
    """
    from dataclasses import asdict

    from ..inspection import coverage

    rows = coverage.survey(configs, archs)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        click.echo(aligned(row.cells() for row in rows))
    narrate(coverage.summary(rows))
    ctx.exit(int(any(row.state == "compile" for row in rows)))
