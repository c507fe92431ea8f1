"""The ``kgen`` command: data on stdout, narration on stderr; 0 done, 1 failed, 2 usage."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .codegen.commands.base import (
    LAZY,
    ConfigCommand,
    Group,
    arch_option,
    as_json,
    exit_code,
    folder_option,
    print_json,
)
from .codegen.commands.flags import narrate, setting_values
from .codegen.version import DISTRIBUTION

if TYPE_CHECKING:
    from .codegen.build import Artifact
    from .codegen.schema import Config


def main() -> None:
    """Entry point of the console script."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        kgen()


def _show_warning(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
    click.echo(f"warning: {message}", err=True)


@click.group(cls=Group, lazy=LAZY, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, message="%(prog)s %(version)s")
def kgen() -> None:
    """Fused CUDA kernels for MLA decode, generated from one schema and built without a toolkit."""


@kgen.command(cls=ConfigCommand)
@arch_option
@click.option("--jobs", type=click.IntRange(min=1), help="parallel compiles at most")
@folder_option
@as_json
@click.pass_context
def build(
    ctx: click.Context,
    configs: tuple[Config, ...],
    archs: tuple[str, ...],
    jobs: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Build cubins: from the cache, else compiled now.

    Kernels are named by slugs (query-h8-b64) or by options, which take lists and ranges:
    --heads 6,8,12 --batch 1-16,32 builds every combination. Without --kernel these are all
    kernels that one decode step needs: query and value, with --dsa also index_front. FOLDER
    receives copies.
    """
    from .codegen import build
    from .codegen.commands import progress, text

    start = time.perf_counter()
    with progress.narration(len(configs) * len(archs)) as tell:
        results = build.build_many(configs, archs, jobs=jobs, on_done=tell)
    summary = progress.summary(results, time.perf_counter() - start)
    built = [
        text.artifact_data(result.artifact, _place(result.artifact, output))
        for result in results
        if result.artifact
    ]
    failed = [result for result in results if result.error]
    if as_json:
        errors = [{"slug": r.config.slug, "arch": r.arch, "error": str(r.error)} for r in failed]
        print_json({"kernels": built, "failed": errors, "summary": summary.data()})
    else:
        for data in built:
            click.echo(text.artifact_line(data))
    narrate(summary)
    ctx.exit(exit_code(result.error for result in results))


def _place(artifact: Artifact, folder: Path | None) -> Path | None:
    if folder is None:
        return artifact.path
    from .codegen import files

    path = folder / f"{artifact.plan.code}-{artifact.plan.target.name}.cubin"
    if artifact.origin != "shared":
        files.replace(path, artifact.cubin.image)
    return path


@kgen.command(cls=ConfigCommand)
@arch_option
@as_json
def plan(configs: tuple[Config, ...], archs: tuple[str, ...], as_json: bool) -> None:
    """Show how kernels will run: grid, shared memory, bytes and the floor; of a step its sum."""
    from .codegen.commands import text
    from .codegen.plan import plan as make_plan

    plans = [make_plan(config, arch) for config in configs for arch in archs]
    if as_json:
        print_json([text.plan_data(each) for each in plans])
    else:
        steps = "\n".join(text.step_lines(plans))
        click.echo("\n\n".join((*map(text.plan_text, plans), *filter(None, (steps,)))))


@kgen.command()
@click.argument("slugs", nargs=-1, metavar="[SLUG]...")
@click.option("--check", is_flag=True, help="write nothing; fail on any difference")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER")
def generate(slugs: tuple[str, ...], check: bool, output: Path | None) -> None:
    """Write CUDA source: of the kernels named to FOLDER, else what is committed.

    Without a name that is the canonical kernels' source in generated/, the stub of the calls, and
    the README's tables.
    """
    from .codegen.commands import readme
    from .codegen.compiler import goldens

    if slugs and output is None:
        raise click.UsageError("name a folder for the kernels' source: -o FOLDER")
    wanted = goldens.files(output, slugs or goldens.SLUGS)
    wanted |= {} if output else readme.renewed()
    if not check:
        touched = goldens.write(wanted)
        for path in touched:
            click.echo(path)
        narrate(f"{len(wanted)} files, {len(touched)} changed")
        return
    differences = goldens.compare(wanted)
    for difference in differences:
        click.echo(f"{difference.kind} {difference.path}")
        click.echo(difference.diff, nl=bool(difference.diff))
    if differences:
        raise click.ClickException(f"{len(differences)} files differ: run kgen generate")
    narrate(f"{len(wanted)} files are current")


@kgen.command()
@click.option("--table", is_flag=True, help="print the options and their combinations in Markdown")
def schema(table: bool) -> None:
    """Print the JSON Schema of every kernel family."""
    from .codegen.commands import text
    from .codegen.schema import json_schema

    if table:
        click.echo(text.schema_tables())
    else:
        print_json(json_schema())


@kgen.command(cls=ConfigCommand)
@click.option("--replays", type=click.IntRange(min=1), default=30, show_default=True)
@as_json
def bench(configs: tuple[Config, ...], replays: int, as_json: bool) -> None:
    """Time kernels on the GPU here, beside their floors."""
    from .codegen.runtime import nvml

    nvml.require()
    from .codegen.bench import timing

    found = timing.run(configs, replays=replays)
    if as_json:
        print_json(found.data())
    else:
        click.echo(found.text())


@kgen.command(cls=ConfigCommand)
@arch_option
@click.option("--sass", is_flag=True, help="print the SASS instead (needs kgen-mla[inspect])")
@click.option("--ptx", is_flag=True, help="print the PTX instead")
@as_json
def inspect(
    configs: tuple[Config, ...], archs: tuple[str, ...], sass: bool, ptx: bool, as_json: bool
) -> None:
    """Show what cubins take and which instructions they are made of; needs no GPU."""
    from .codegen.inspection import disasm

    found = [disasm.inspect(config, arch) for config in configs for arch in archs]
    if sass or ptx:
        click.echo("\n".join(part for each in found for part in each.listings(sass, ptx)))
    elif as_json:
        print_json([each.data() for each in found])
    else:
        click.echo("\n\n".join(each.text() for each in found))


@kgen.command()
@click.option("--table", is_flag=True, help="print the settings in Markdown")
@as_json
@click.pass_context
def env(ctx: click.Context, table: bool, as_json: bool) -> None:
    """Show every setting, its value and where it is from."""

    from .codegen import settings
    from .codegen.commands import readme
    from .codegen.tables import aligned

    values = setting_values(ctx)
    if as_json:
        print_json(values)
    elif table:
        click.echo(readme.settings_table())
    else:
        click.echo(aligned((v["name"], v["value"], v["from"]) for v in values))
    wrong = list(settings.problems())
    for error in wrong:
        click.echo(f"error: {error}", err=True)
    ctx.exit(2 if wrong else 0)


@kgen.command()
@as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Tell what this machine can do; fails if kernels cannot be built."""
    from dataclasses import asdict

    from .codegen.commands import text
    from .codegen.inspection import doctor

    findings = doctor.examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        click.echo(text.findings_text(findings))
    ctx.exit(0 if doctor.healthy(findings) else 1)


if __name__ == "__main__":
    main()
