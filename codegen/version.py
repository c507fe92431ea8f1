"""The version of this kgen, as its distribution says it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

DISTRIBUTION = "kgen"


@cache
def version() -> str:
    """Such as ``0.1.0``; ``0+unknown`` where kgen is not installed."""
    try:
        return _version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"
