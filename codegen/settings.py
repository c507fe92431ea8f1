"""Every ``KGEN_*`` environment variable, typed, read when asked for and never at import."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable; ``default`` says in words what holds where it is not set."""

    name: str
    default: str
    doc: str
    parse: Callable[[str], T]
    unset: Callable[[], T]
    allowed: tuple[str, ...] = ()

    def text(self) -> str | None:
        """What the environment holds; None where it is not set or empty."""
        return os.environ.get(self.name, "").strip() or None

    def value(self) -> T:
        """The setting's value now; ConfigError where it is not allowed."""
        text = self.text()
        if text is None:
            return self.unset()
        if self.allowed and text not in self.allowed:
            raise ConfigError(self.name, text, f"allowed are {', '.join(self.allowed)}")
        return self.parse(text)


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def _user_cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("kgen", appauthor=False)


LOG_LEVELS = ("off", "info", "debug")

CACHE_DIR: Setting[Path] = Setting(
    "KGEN_CACHE_DIR", "the user's cache folder", "where built kernels are kept", _path, _user_cache
)
CACHE_PATH: Setting[tuple[Path, ...]] = Setting(
    "KGEN_CACHE_PATH", "none", f"more caches, read only, split at {os.pathsep!r}", _paths, tuple
)
ARCH: Setting[str | None] = Setting(
    "KGEN_ARCH", "the GPU here, else sm_90a", "the target where none is given", str, lambda: None
)
JIT: Setting[bool] = Setting(
    "KGEN_JIT",
    "1",
    "0 forbids compiling: only packaged and cached kernels are used",
    lambda text: text == "1",
    lambda: True,
    ("0", "1"),
)
DUMP_DIR: Setting[Path | None] = Setting(
    "KGEN_DUMP_DIR", "none", "where to leave every rendered source and cubin", _path, lambda: None
)
LOG: Setting[int] = Setting(
    "KGEN_LOG",
    "off",
    "what to tell on stderr: info is a line a kernel, debug its compiler log too",
    LOG_LEVELS.index,
    lambda: 0,
    LOG_LEVELS,
)

SETTINGS: tuple[Setting[Any], ...] = (CACHE_DIR, CACHE_PATH, ARCH, JIT, DUMP_DIR, LOG)
