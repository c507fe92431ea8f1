"""``kgen cache``: look at the caches, verify, explain, prune and empty them; no GPU, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..tables import aligned
from .base import ConfigCommand, Group, arch_option, as_json, print_json
from .flags import narrate

if TYPE_CHECKING:
    from ..schema import Config


@click.group(cls=Group)
def cache() -> None:
    """Look at the cache, check it, or empty it."""


@cache.command("dir")
@as_json
def cache_dir(as_json: bool) -> None:
    """Print the folder that kernels are stored in."""
    from ..cache import lookup

    own, *others = (str(store.root) for store in lookup.path())
    if as_json:
        print_json({"folder": own, "read_only": others})
    else:
        click.echo(own)


@cache.command("ls")
@as_json
def cache_ls(as_json: bool) -> None:
    """List the sound kernels of the cache and of the read-only ones."""
    from ..cache import lookup
    from ..cache.store import Entry
    from . import text

    found = [each for store in lookup.path() for each in store.examine()]
    entries = [each for each in found if isinstance(each, Entry)]
    if as_json:
        print_json([text.entry_data(entry) for entry in entries])
    elif entries:
        click.echo(aligned(map(text.entry_row, entries)))
    narrate(f"{len(entries)} kernels")
    if len(found) > len(entries):
        narrate(f"{len(found) - len(entries)} are not loaded: see kgen cache verify")


@cache.command("verify")
@as_json
def cache_verify(as_json: bool) -> None:
    """Check every kernel against its checksum; exits 1 if one is damaged or not to be trusted."""
    from ..cache import lookup, maintenance

    found = list(maintenance.verify(lookup.path()))
    bad = [each for each in found if each.state not in ("sound", "aside")]
    if as_json:
        print_json([each.data() for each in found])
    else:
        for each in found:
            if each.state != "sound":
                click.echo(f"{each.state:<10} {each.path}: {each.text}")
    healed = sum(each.state == "aside" for each in found)
    aside = f", {healed} set aside and replaced" if healed else ""
    narrate(f"{len(found) - len(bad) - healed} sound, {len(bad)} not{aside}")
    if bad:
        raise click.exceptions.Exit(1)


@cache.command("prune")
@click.option("--max-size", metavar="SIZE", help="bytes to keep at most, such as 500M or 2G")
@click.option("--older-than", metavar="TIME", help="how long unused, such as 30d or 12h")
@as_json
def cache_prune(max_size: str | None, older_than: str | None, as_json: bool) -> None:
    """Remove the longest unused kernels, and what was set aside as damaged."""
    from ..cache import maintenance
    from ..cache.store import Cache

    limit = None if max_size is None else maintenance.size(max_size)
    age = None if older_than is None else maintenance.span(older_than)
    removed = maintenance.prune(Cache(), limit, age)
    if as_json:
        print_json([each.data() for each in removed])
    total = sum(each.bytes for each in removed)
    narrate(f"{len(removed)} kernels removed, {total:,} bytes")


@cache.command("clear")
@as_json
def cache_clear(as_json: bool) -> None:
    """Remove every built kernel."""
    from ..cache import maintenance
    from ..cache.store import Cache

    store = Cache()
    count = maintenance.clear(store)
    if as_json:
        print_json({"folder": str(store.root), "removed": count})
    narrate(f"{count} kernels removed from {store.root}")


@cache.command("explain", cls=ConfigCommand)
@arch_option
@as_json
def cache_explain(configs: tuple[Config, ...], archs: tuple[str, ...], as_json: bool) -> None:
    """Say whether kernels are found, and which fields differ from the nearest one."""
    from ..inspection.explain import explain

    found = [explain(config, arch) for config in configs for arch in archs]
    if as_json:
        print_json([each.data() for each in found])
    else:
        click.echo("\n\n".join(each.text() for each in found))
