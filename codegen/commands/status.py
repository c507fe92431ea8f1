"""A line on stderr that says how far a long run is."""

from __future__ import annotations

import shutil
import sys
import time

EVERY = 15.0  # seconds between two lines where there is no terminal


class Status:
    """The line: on a terminal it is overwritten, elsewhere it comes now and then."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._start = self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Say ``text``, after the seconds since the start."""
        now = time.monotonic()
        line = f"{now - self._start:.0f} s: {text}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif not self._quiet and now - self._last >= EVERY:
            self._last = now
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for other text."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
