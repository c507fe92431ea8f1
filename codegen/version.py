"""The version of this kgen, as its distribution says it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

DISTRIBUTION = "kgen-mla"  # `kgen` on the public index is another project


def advice(extra: str) -> str:
    """How to install what the optional dependencies ``extra`` bring."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def version() -> str:
    """Such as ``0.1.0``; ``0+unknown`` where kgen is not installed."""
    try:
        return _version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"
