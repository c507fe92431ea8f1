"""What every command takes beside its own options: a flag for each setting, and ``-q``."""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any

import click

from .. import settings

QUIET = "kgen.quiet"  # in a context's meta: narration is not wanted
FLAGS = "kgen.flags"  # in a context's meta: names of the settings that flags have set


@cache
def quiet_flag() -> click.Option:
    """Silences narration; data and errors stay."""
    return click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=lambda ctx, _param, value: ctx.meta.update({QUIET: bool(value)}),
        help="say nothing on stderr but errors",
    )


def narrate(text: object) -> None:
    """``text`` on stderr, unless that is to be quiet."""
    if not is_quiet():
        click.echo(text, err=True)


def is_quiet() -> bool:
    """Whether the command at hand narrates nothing."""
    return bool(click.get_current_context().meta.get(QUIET))


@cache
def setting_flags() -> tuple[click.Option, ...]:
    """One option per setting; it sets the environment variable while the command runs."""
    return tuple(
        click.Option(
            [setting_flag(setting.name)],
            metavar="VALUE",
            expose_value=False,
            callback=partial(_set, setting.name),
            help=f"{setting.doc} [{setting.name}; default: {setting.default}]",
        )
        for setting in settings.SETTINGS
    )


def setting_flag(name: str) -> str:
    """The flag that mirrors the setting ``name``: ``--cache-dir`` for ``KGEN_CACHE_DIR``."""
    return "--" + name.removeprefix("KGEN_").lower().replace("_", "-")


def setting_values(ctx: click.Context) -> list[dict[str, str]]:
    """Every setting with its value and where that is from."""
    return [_setting_value(ctx, setting) for setting in settings.SETTINGS]


def _setting_value(ctx: click.Context, setting: settings.Setting[Any]) -> dict[str, str]:
    given = setting.text()
    chosen = "flag" if setting.name in ctx.meta.get(FLAGS, ()) else "environment"
    is_folder = setting is settings.CACHE_DIR
    return {
        "name": setting.name,
        "flag": setting_flag(setting.name),
        "value": str(setting.value()) if is_folder else given or setting.default,
        "from": chosen if given else "default",
        "default": setting.default,
        "doc": setting.doc,
    }


def _set(name: str, ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    ctx.meta.setdefault(FLAGS, set()).add(name)
    ctx.call_on_close(partial(_restore, name, os.environ.get(name)))
    os.environ[name] = value


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
