"""kgen: fused CUDA kernels for MLA decode, generated from one small schema.

>>> import kgen
>>> query = kgen.query(heads=8, batch=64)

Importing loads nothing else: each public name is fetched when it is first used. Every family of the
schema is one: ``query``, ``value`` and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _families() -> tuple[str, ...]:
    from .codegen.schema import KERNELS

    return tuple(KERNELS)


def __getattr__(name: str) -> Any:
    from .codegen.public import MODULES, PLACES

    if name == "__version__":
        value: Any = import_module(".codegen.version", __name__).version()
    elif name == "__all__":
        value = sorted(("__version__", *MODULES, *PLACES, *_families()))
    elif name in MODULES:
        value = import_module(f".codegen.{name}", __name__)
    elif place := PLACES.get(name):
        value = getattr(import_module(f".codegen.{place}", __name__), name)
    elif not name.startswith("_") and name in _families():
        value = import_module(".codegen.api", __name__).family(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
