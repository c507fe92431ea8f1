"""When a kernel lets the next one of its chain start: what ``auto`` means for each schedule."""

from __future__ import annotations

from typing import Any

from ..schema import Config

# By family and scheme, as measured on an H200 (docs/performance.md); all others do best after the
# wait. An index_front must not trigger before its wait: a late query may follow it.
_AUTO = {("query", "folded"): "start"}


def auto_release(config: Config, scheme: str) -> str:
    """The mode that ``auto`` stands for: ``start`` or ``wait``."""
    if getattr(config, "late", False):
        return "start"  # there is no wait at its start
    return _AUTO.get((config.kernel, scheme), "wait")


def release_of(config: Any, scheme: str) -> str:
    """The mode of ``config``, a family's: ``start``, ``wait`` or ``end``."""
    auto = auto_release(config, scheme)
    return auto if config.release == "auto" else str(config.release)
