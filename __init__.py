"""kgen: fused CUDA kernels for MLA decode, generated from one small schema.

>>> import kgen
>>> query = kgen.query(heads=8, batch=64)

Importing loads nothing else: each public name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codegen.api import Kernel, Prepared, gate, index_front, query, query_norm, value
    from .codegen.errors import (
        ArgumentError,
        CacheWarning,
        CompileError,
        ConfigError,
        DeviceError,
        DriverError,
        KgenError,
        NotBuiltError,
        PlanError,
        RenderError,
    )

    __version__: str

__all__ = [
    "ArgumentError",
    "CacheWarning",
    "CompileError",
    "ConfigError",
    "DeviceError",
    "DriverError",
    "Kernel",
    "KgenError",
    "NotBuiltError",
    "PlanError",
    "Prepared",
    "RenderError",
    "__version__",
    "gate",
    "index_front",
    "query",
    "query_norm",
    "value",
]

_API = ("Kernel", "Prepared", "gate", "index_front", "query", "query_norm", "value")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kgen")
    except PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: Any = _version()
    else:
        module = "api" if name in _API else "errors"
        value = getattr(import_module(f".codegen.{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
