"""kgen: fused CUDA kernels for MLA decode, generated from one small schema.

>>> import kgen
>>> query = kgen.query(heads=8, batch=64)

Importing loads nothing else: each public name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codegen import mailboxes as dcp
    from .codegen.api import (
        Kernel,
        Prepared,
        dcp_value,
        gate,
        index_front,
        query,
        query_norm,
        query_wait,
        value,
    )
    from .codegen.emulation import Emulation, emulate
    from .codegen.errors import (
        ArgumentError,
        CacheWarning,
        CompileError,
        ConfigError,
        DeviceError,
        DriverError,
        EmulationError,
        KgenError,
        NotBuiltError,
        PlanError,
        RenderError,
    )
    from .codegen.value_bmm import value_bmm
    from .codegen.warmup import warmup

    __version__: str

__all__ = [
    "ArgumentError",
    "CacheWarning",
    "CompileError",
    "ConfigError",
    "DeviceError",
    "DriverError",
    "Emulation",
    "EmulationError",
    "Kernel",
    "KgenError",
    "NotBuiltError",
    "PlanError",
    "Prepared",
    "RenderError",
    "__version__",
    "dcp",
    "dcp_value",
    "emulate",
    "gate",
    "index_front",
    "query",
    "query_norm",
    "query_wait",
    "value",
    "value_bmm",
    "warmup",
]

_MODULES = {
    **dict.fromkeys(("Kernel", "Prepared", "gate", "index_front"), "api"),
    **dict.fromkeys(("dcp_value", "query", "query_norm", "query_wait", "value"), "api"),
    **dict.fromkeys(("Emulation", "emulate"), "emulation"),
    **{name: name for name in ("value_bmm", "warmup")},
}  # where a public name is, if not in `errors`


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
    elif name == "dcp":
        value = import_module(".codegen.mailboxes", __name__)
    else:
        module = _MODULES.get(name, "errors")
        value = getattr(import_module(f".codegen.{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
