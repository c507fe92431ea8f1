"""What runs one rank only refuses kernels that wait for others."""

from __future__ import annotations

from ..errors import ConfigError
from .config import Config


def refuse_ranks(config: Config, command: str) -> None:
    """Refuse ``config`` where it is of several ranks: alone, its poll would never end.

    Raises
    ------
    ConfigError
        Naming the ranks, and what runs them.
    """
    ranks = getattr(config, "dcp", 0)
    if ranks:
        raise ConfigError(
            "dcp",
            ranks,
            f"{command} runs one rank alone, and {config.slug} needs {ranks}, each with the"
            " mailboxes of all: kgen.dcp.Mailboxes makes those in a program of your own; on a CPU"
            " kgen verify --cpu runs all ranks",
        )
