"""Commands whose options are derived: a flag per setting, an option per field of the schema."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import settings
from ..errors import ConfigError, KgenError
from .flags import narrate, quiet_flag, setting_flags

if TYPE_CHECKING:
    from ..schema import Config, Option

OFF = "no_"  # what the name of a switch begins with that turns a field off
INTERRUPTED = 130  # the exit code of what SIGINT ends


class Failure(click.ClickException):
    """An error that kgen raised on purpose, as the command line reports it."""

    exit_code = 1


class Misuse(Failure):
    """A :class:`Failure` by the user's mistake."""

    exit_code = 2


def failure(error: Exception) -> Failure:
    """``error`` with a message and an exit code."""
    return (Misuse if isinstance(error, ConfigError) else Failure)(str(error))


def exit_code(errors: Iterable[Exception | None]) -> int:
    """0 where nothing failed, 2 where all failed by the user's mistake, else 1."""
    outcomes = [None if error is None else failure(error).exit_code for error in errors]
    if outcomes and all(outcome == 2 for outcome in outcomes):
        return 2
    return int(any(outcomes))


class Command(click.Command):
    """A command that takes a flag for every setting."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = {opt for param in self.params for opt in param.opts}
        flags = (flag for flag in (quiet_flag(), *setting_flags()) if own.isdisjoint(flag.opts))
        *params, help_option = super().get_params(ctx)
        return [*params, *flags, help_option]


class ConfigCommand(Command):
    """A command on configurations: its callback takes ``configs``, from slugs and options."""

    skips = True  # takes --skip-illegal

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from ..schema import KERNELS

        derived = config_params(tuple(KERNELS.values()))
        return [*derived, *(_SKIP,) * self.skips, *super().get_params(ctx)]

    def invoke(self, ctx: click.Context) -> Any:
        from ..schema import KERNELS

        derived = config_params(tuple(KERNELS.values()))
        values = {str(param.name): ctx.params.pop(str(param.name)) for param in derived}
        slugs, kernel = values.pop("slugs"), values.pop("kernel")
        named = ((name.removeprefix(OFF), value) for name, value in values.items())
        given = {name: value for name, value in named if value is not None}
        found = self.select(slugs, kernel, given)
        if ctx.params.pop(str(_SKIP.name), False):
            found = self.legal(found)
        ctx.params["configs"] = found
        return super().invoke(ctx)

    def legal(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """What of ``found`` can be; the others are told of."""
        refused = [each for each in found if not hasattr(each, "slug")]
        for each in refused:
            narrate(f"skipped {each.name}: {each.reason}")
        kept = tuple(each for each in found if each not in refused)
        if not kept:
            raise ConfigError(
                "--skip-illegal", f"{len(refused)} points", "not one of them is legal"
            )
        return kept

    def select(
        self, names: tuple[str, ...], kernel: str | None, given: dict[str, Any]
    ) -> tuple[Any, ...]:
        """What the command line names; without ``kernel`` all that a decode step needs."""
        from ..schema import select

        archs = click.get_current_context().params.get("archs") or target_names(())
        return select(names, kernel, given, self.make, archs)

    def make(self, kernel: str, fields: Mapping[str, Any]) -> Any:
        """What the callback gets for the fields of a family."""
        from ..schema import attempt, make

        skip = click.get_current_context().params.get(str(_SKIP.name))
        return attempt(kernel, fields) if skip else make(kernel, fields)


_SKIP = click.Option(
    ["--skip-illegal"], is_flag=True, help="leave out what no kernel can be, and say so"
)


class Group(click.Group):
    """A group whose commands end with a message and an exit code, never a traceback.

    ``lazy`` maps commands to the modules of this package that define them by those names.
    """

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if module := self._lazy.get(name):
            found: click.Command = getattr(import_module(f".{module}", __package__), name)
            return found
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # it looks for names like it in the loaded ones only
            known = self.list_commands(ctx)
            raise click.NoSuchCommand(error.command_name, possibilities=known, ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except (KgenError, OSError) as error:
            raise failure(error) from None


Group.group_class = Group


@cache
def config_params(models: tuple[type[Config], ...]) -> tuple[click.Parameter, ...]:
    """Slugs, the family and one option per field of ``models``; same-named fields share one."""
    from ..schema import options

    fields: dict[str, Option] = {}
    for option in chain.from_iterable(map(options, models)):
        fields.setdefault(option.name, option)
    families = click.Option(
        ["--kernel"],
        type=click.Choice([model.kernel for model in models]),
        help="kernel family [default: all that one decode step needs]",
    )
    slugs = click.Argument(["slugs"], nargs=-1, metavar="[SLUG|MATRIX.toml]...")
    offs = (_off_switch(option) for option in fields.values() if option.off)
    return (slugs, families, *map(_field_option, fields.values()), *offs)


def _off_switch(option: Option) -> click.Option:
    """The switch that names the choice ``option.off``, as it would turn a boolean field off."""
    dashed = option.name.replace("_", "-")
    text = f"--{dashed} {option.off}"
    return click.Option(
        [f"--no-{dashed}", OFF + option.name], flag_value=option.off, default=None, help=text
    )


def _field_option(option: Option) -> click.Option:
    dashed = option.name.replace("_", "-")
    if option.type is bool:
        state = "on" if option.default else "off"
        text = f"{option.doc} [default: {state}]"
        return click.Option([f"--{dashed}/--no-{dashed}", option.name], default=None, help=text)
    note = "required" if option.required else f"default: {option.default}"
    return click.Option(
        [f"--{dashed}", option.name],
        metavar="|".join(option.choices) if option.choices else f"{option.low}-{option.high}",
        help=f"{option.doc} [{note}]",
    )


def target_names(chosen: Iterable[str]) -> tuple[str, ...]:
    """The targets ``chosen``, else the setting's, else the GPU's here; promotions are noted."""
    names = tuple(chosen) or tuple(filter(None, (settings.ARCH.value(),)))
    if names:
        return tuple(dict.fromkeys(map(_target_name, names)))
    from ..runtime.nvml import default_arch

    return (default_arch(),)


def _target_name(name: str) -> str:
    from ..targets import TARGETS, target

    try:
        found = target(name).name
    except ConfigError:
        from ..compiler.nvrtc import nvrtc_build, supported_archs

        knows = f"NVRTC {nvrtc_build()} knows {', '.join(supported_archs())}"
        raise ConfigError("arch", name, f"kgen has {', '.join(TARGETS)}; {knows}") from None
    if found != name:
        narrate(f"note: {name} is promoted to {found}")
    return found


as_json = click.option("--json", "as_json", is_flag=True, help="print JSON")
arch_option = click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="ARCH",
    callback=lambda _ctx, _param, value: target_names(value),
    help="target, may repeat [default: KGEN_ARCH, else the GPU here, else sm_90a]",
)
folder_option = click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    callback=lambda _ctx, _param, value: value and _made(value),
    help="put copies here",
)


def _made(folder: Path) -> Path:
    """``folder``, there and writable: it is found out before anything is compiled."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--output", str(folder), f"cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError("--output", str(folder), "it cannot be written to")
    return folder


def print_json(data: Any) -> None:
    """``data`` on stdout."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


# Commands with modules of their own, which are loaded when they are asked for.
LAZY = {"cache": "cache", "package": "package", "coverage": "package", "verify": "verify"}
