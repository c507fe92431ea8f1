"""The logger ``kgen``; the setting ``KGEN_LOG`` switches it on."""

from __future__ import annotations

import logging
import sys

from . import settings

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # by what KGEN_LOG is


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what stderr is when it writes."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def logger() -> logging.Logger:
    """The logger, at the level that the setting asks for now.

    With the setting it writes to stderr; without, what it says goes where the application sends it.
    """
    log, level = logging.getLogger("kgen"), settings.LOG.value()
    own = [handler for handler in log.handlers if isinstance(handler, _Stderr)]
    if level and not own:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("kgen: %(message)s"))
        log.addHandler(handler)
    for handler in own if not level else ():
        log.removeHandler(handler)
    if level or own:
        log.setLevel(LEVELS[level])
    return log
