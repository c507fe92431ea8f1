"""Every ``KGEN_*`` environment variable, typed, read when asked for and never at import."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator
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
    parse = _absolute("KGEN_CACHE_PATH")
    return tuple(parse(part) for part in text.split(os.pathsep) if part)


def _absolute(name: str) -> Callable[[str], Path]:
    """A parser of absolute paths: a cache is never relative to where a process was started."""

    def parse(text: str) -> Path:
        path = Path(os.path.expanduser(text))
        if not path.is_absolute():
            raise ConfigError(name, text, "an absolute path is needed")
        return path

    return parse


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ConfigError("KGEN_RANKS_PER_GPU", text, "allowed is an integer from 1 to 64")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d+)?", text):
        raise ConfigError("KGEN_TURN_LIMIT", text, "allowed is a number of seconds, from 0")
    return float(text)


def _user_cache() -> Path:
    from platformdirs import user_cache_path

    path = user_cache_path("kgen", appauthor=False)
    return path if path.is_absolute() else Path("/tmp", f"kgen-{os.getuid()}")  # no home


LOG_LEVELS = ("off", "info", "debug")

CACHE_DIR: Setting[Path] = Setting(
    "KGEN_CACHE_DIR",
    "the user's cache folder",
    "where built kernels are kept",
    _absolute("KGEN_CACHE_DIR"),
    _user_cache,
)
CACHE_PATH: Setting[tuple[Path, ...]] = Setting(
    "KGEN_CACHE_PATH", "none", f"more caches, read only, split at {os.pathsep!r}", _paths, tuple
)
CACHE_TRUST: Setting[str] = Setting(
    "KGEN_CACHE_TRUST",
    "own",
    "own: load no symlink and nothing that others own or can write, but root's; any: load all",
    str,
    lambda: "own",
    ("own", "any"),
)
CACHE_MODE: Setting[str] = Setting(
    "KGEN_CACHE_MODE",
    "private",
    "who may read what is stored: private is you alone, group your group, all everyone; readers "
    "other than you need KGEN_CACHE_TRUST=any",
    str,
    lambda: "private",
    ("private", "group", "all"),
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
RANKS_PER_GPU: Setting[int] = Setting(
    "KGEN_RANKS_PER_GPU",
    "1",
    "decode context parallel ranks that share a GPU, 1 to 64; their polling kernels must fit it",
    _ranks,
    lambda: 1,
)
TURN_LIMIT: Setting[float] = Setting(
    "KGEN_TURN_LIMIT",
    "120",
    "seconds to wait at most for another process that compiles the same kernel",
    _seconds,
    lambda: 120.0,
)
LOG: Setting[int] = Setting(
    "KGEN_LOG",
    "off",
    "what to tell on stderr: info is a line a kernel, debug its compiler log too",
    LOG_LEVELS.index,
    lambda: 0,
    LOG_LEVELS,
)

PREFIX = "KGEN_"


def problems() -> Iterator[ConfigError]:
    """What is wrong with the environment: values that are not allowed, and names that are none."""
    known = {setting.name: setting for setting in SETTINGS}
    for name in sorted(each for each in os.environ if each.startswith(PREFIX)):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            yield ConfigError(name, os.environ[name], f"{hint}the settings are {', '.join(known)}")
            continue
        try:
            known[name].value()
        except ConfigError as error:
            yield error


SETTINGS: tuple[Setting[Any], ...] = (
    CACHE_DIR,
    CACHE_PATH,
    CACHE_TRUST,
    CACHE_MODE,
    ARCH,
    JIT,
    DUMP_DIR,
    RANKS_PER_GPU,
    TURN_LIMIT,
    LOG,
)
