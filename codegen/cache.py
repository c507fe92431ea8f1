"""Built kernels on disk: a folder per key that holds the raw cubin and its metadata.

The key is a hash of content only, so that an entry is right wherever it came from.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import settings
from .errors import CacheWarning
from .schema import VERSION

if TYPE_CHECKING:
    from .render import Source


def key(source: Source, arch: str, options: tuple[str, ...], nvrtc: str) -> str:
    """The SHA-256 of all that decides a cubin's bytes, as hex digits.

    Every field is written with its label and its length, so that no two lists of fields agree.
    """
    fields = [("schema", str(VERSION)), ("text", source.text)]
    for name, text in source.headers:
        fields += [("header name", name), ("header text", text)]
    fields += [("option", option) for option in options]
    fields += [("arch", arch), ("nvrtc", nvrtc)]
    digest = hashlib.sha256()
    for label, value in fields:
        data = value.encode()
        digest.update(f"{label}:{len(data)}:".encode() + data)
    return digest.hexdigest()


DAMAGE = (OSError, ValueError, KeyError, TypeError)  # what reading a damaged entry raises


@dataclass(frozen=True)
class Entry:
    """One verified kernel of a cache; ``meta`` is its JSON file."""

    key: str
    path: Path
    image: bytes
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Cache:
    """The kernels under ``root``: ``<key>/<key>.cubin`` and ``<key>/<key>.json``.

    An entry appears by one rename, whole or not at all, and only its owner may read it.
    """

    root: Path = field(default_factory=settings.CACHE_DIR.value)

    def get(self, key: str) -> Entry | None:
        """The entry of ``key`` with its checksum verified; a damaged one is a miss with one
        :class:`CacheWarning`, and :meth:`put` replaces it."""
        folder = self.root / key
        problem: Exception | None = None
        for _ in range(2):  # the second look is for an entry that was replaced during the first
            if not os.path.isdir(folder):
                return None
            try:
                return _load(folder)
            except DAMAGE as error:
                problem = error
        warnings.warn(f"damaged, ignored: {folder} ({problem})", CacheWarning, stacklevel=2)
        return None

    def put(self, key: str, image: bytes, meta: Mapping[str, Any]) -> Path:
        """Store ``image`` and ``meta``; return the cubin's path. OSError where that cannot be."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            facts = {**meta, "key": key, "bytes": len(image)}
            facts["checksum"] = _checksum(image, facts)
            _write(staging / f"{key}.cubin", image)
            _write(staging / f"{key}.json", json.dumps(facts, indent=2).encode() + b"\n")
            self._publish(staging, self.root / key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return self.root / key / f"{key}.cubin"

    def _publish(self, staging: Path, folder: Path) -> None:
        """Rename ``staging`` to ``folder``, unless a sound entry is there: it is as good."""
        while True:
            try:
                staging.rename(folder)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            with suppress(*DAMAGE):
                _load(folder)
                return
            self._remove(folder)

    def entries(self) -> Iterator[Entry]:
        """The sound entries, in the order of their keys."""
        for folder in self._folders():
            if entry := self.get(folder.name):
                yield entry

    def clear(self) -> int:
        """Remove every entry, and nothing else that lies in the folder; return how many."""
        folders = self._folders()
        for folder in folders:
            self._remove(folder)
        return len(folders)

    def _folders(self) -> list[Path]:
        try:
            names = os.listdir(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [self.root / name for name in sorted(names) if _is_key(name)]

    def _remove(self, folder: Path) -> None:
        """Take ``folder`` out by one rename, so that no reader meets half of it."""
        trash = Path(tempfile.mkdtemp(prefix=".old-", dir=self.root))
        try:
            folder.rename(trash / folder.name)
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(trash, ignore_errors=True)


def _is_key(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _checksum(image: bytes, facts: Mapping[str, Any]) -> str:
    """The SHA-256 of the cubin and of all the other facts about it."""
    return hashlib.sha256(image + json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _load(folder: Path) -> Entry:
    key = folder.name
    path = folder / f"{key}.cubin"
    image = path.read_bytes()
    meta = json.loads((folder / f"{key}.json").read_bytes())
    if meta["key"] != key or meta.pop("checksum") != _checksum(image, meta):
        raise ValueError("it does not match its checksum")
    return Entry(key, path, image, meta)


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
