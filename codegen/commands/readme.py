"""The README's tables: rendered with all else that is, as the commands print them."""

from __future__ import annotations

from pathlib import Path

from .. import settings
from ..compiler.goldens import FOLDER
from ..tables import markdown
from .flags import setting_flag
from .text import schema_tables

README = FOLDER.parent / "README.md"


def settings_table() -> str:
    """Every setting, in Markdown."""
    header = ("Setting", "Flag", "Default", "Meaning")
    rows = (
        (f"`{s.name}`", f"`{setting_flag(s.name)}`", s.default, s.doc) for s in settings.SETTINGS
    )
    return markdown(header, rows)


TABLES = {"kgen schema --table": schema_tables, "kgen env --table": settings_table}


def renewed() -> dict[Path, str]:
    """The README with the tables of now, each between a comment with its command and an end."""
    text = README.read_text(encoding="utf-8")
    for command, table in TABLES.items():
        start = f"<!-- {command} -->\n"
        before, _, rest = text.partition(start)
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{start}{table()}\n{end}{after}"
    return {README: text}
