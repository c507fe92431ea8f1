"""Built kernels in a folder: a folder per key that holds the raw cubin and its metadata."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .. import settings
from . import ownership
from .keys import combine, is_key

TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # what a rename to an entry's place says
ATTEMPTS = 5  # at publishing, while others set aside and publish the same entry
DAY = 86400.0  # seconds
ASIDE = ".aside-"  # then the key: what was found damaged
HOST_FOLDER = "host"  # libraries of the CPU run, which are no entries
FACTS = {"kernel": str, "name": str, "arch": str, "nvrtc": str, "options": list, "fields": dict}
LEFTOVERS = (".new-", ".old-", ASIDE, ".lock-")  # beginnings of names that are no entries


@dataclass(frozen=True)
class Entry:
    """One verified kernel of a cache; ``meta`` is its JSON file."""

    key: str
    path: Path
    image: bytes
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """What keeps an entry, or with the root's ``path`` a whole cache, from being loaded."""

    path: Path
    state: Literal["damaged", "untrusted", "unreadable"]
    text: str
    remedy: str = ""


class Mode(NamedTuple):
    """Permissions of a cache's folder, of an entry's folder and of its files."""

    root: int
    folder: int
    file: int


MODES = {
    "private": Mode(0o700, 0o700, 0o600),
    "group": Mode(0o2770, 0o750, 0o640),
    "all": Mode(0o755, 0o755, 0o644),
}


def _mode() -> Mode:
    return MODES[settings.CACHE_MODE.value()]


class Damaged(Exception):
    """An entry that is not as it was stored."""

    def __init__(self, what: str, expected: object, found: object) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")


@dataclass(frozen=True)
class Cache:
    """The kernels under ``root``: ``<key>/<key>.cubin`` and ``<key>/<key>.json``.

    An entry appears by one rename, whole or not at all. Who may read it is a setting, by default
    its owner alone.
    """

    root: Path = field(default_factory=settings.CACHE_DIR.value)

    def get(self, key: str) -> Entry | Problem | None:
        """The entry of ``key``, read now and its checksum verified; None where there is none."""
        found = self._look(key)
        if isinstance(found, Problem) and found.state != "untrusted":
            return self._look(key)  # it may have been replaced during the first look
        return found

    def _look(self, key: str, name: str = "") -> Entry | Problem | None:
        """The entry of ``key`` in the folder ``name``, by default its own."""
        try:
            with ownership.folder(self.root) as root:
                return _enter(self.root / (name or key), root, key)
        except ownership.Untrusted as error:
            return Problem(error.path, "untrusted", error.reason, error.remedy)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return _unreadable(self.root, error)

    def make(self) -> None:
        """Make the folder, for whom the setting says; Untrusted or OSError where it cannot be
        used."""
        path = (self.root, *self.root.parents)
        missing = [each for each in path if not os.path.lexists(each)]
        for each in reversed(missing):
            each.mkdir(mode=_mode().root & 0o755, exist_ok=True)
        if self.root in missing:
            self.root.chmod(_mode().root)  # mkdir knows no setgid
        with ownership.folder(self.root):
            pass

    def put(self, key: str, image: bytes, meta: Mapping[str, Any]) -> Path:
        """Store ``image`` and ``meta`` (with the key's ``fields``); return the cubin's path.

        Raises
        ------
        OSError, Untrusted
            Where that cannot be. Nothing is left behind that a later prune would not remove.
        """
        self.make()
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            facts = {**meta, "key": key, "bytes": len(image)}
            facts["checksum"] = _checksum(image, facts)
            _write(staging / f"{key}.cubin", image)
            _write(staging / f"{key}.json", json.dumps(facts, indent=2).encode() + b"\n")
            staging.chmod(_mode().folder)
            self._publish(staging, self.root / key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return self.root / key / f"{key}.cubin"

    def _publish(self, staging: Path, folder: Path) -> None:
        """Rename ``staging`` to ``folder``, unless a sound entry is there: it is as good."""
        for attempt in range(ATTEMPTS):
            try:
                staging.rename(folder)
                return
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
            found = self.get(folder.name)
            if isinstance(found, Entry):
                return
            if found and found.state != "damaged":  # another's, who may be able to read it
                raise OSError(errno.EACCES, f"{found.path} {found.text}")
            if found or attempt:  # at first, nothing to be seen means that it has just been removed
                self._set_aside(folder)
        raise OSError(errno.EBUSY, f"{folder} is in use")

    def _set_aside(self, folder: Path) -> None:
        """Move a damaged entry out of the way, and remove it if it was replaced by a sound one
        meanwhile: only what is damaged is kept to be looked at."""
        place = _move(folder, ASIDE)
        if place and isinstance(self._look(folder.name, place.name), Entry):
            discard(place)

    def touch(self, key: str) -> None:
        """Note that ``key`` was used, at most once a day: prune removes the longest unused."""
        folder = self.root / key
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > DAY:
                os.utime(folder)

    def entries(self) -> Iterator[Entry]:
        """The sound entries, in the order of their keys."""
        return (found for found in self.examine() if isinstance(found, Entry))

    def examine(self) -> Iterator[Entry | Problem]:
        """Every entry in the order of its key, or what is wrong with it."""
        for key in self.known():
            if found := self.get(key):
                yield found
                if isinstance(found, Problem) and found.path == self.root:
                    return

    def known(self) -> list[str]:
        """The keys of all entries, sound or not."""
        return [name for name in self._names() if is_key(name)]

    def leftovers(self) -> list[Path]:
        """What lies beside the entries: damaged ones, and what killed processes left."""
        return [self.root / name for name in self._names() if name.startswith(LEFTOVERS)]

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, key: str) -> None:
        """Remove the entry of ``key``, by one rename first: no reader meets half of it."""
        discard(_move(self.root / key, ".old-"))


def discard(path: Path | None) -> None:
    """Remove a file or a folder; what cannot be removed stays."""
    if path is None:
        return
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _move(folder: Path, prefix: str) -> Path | None:
    """Rename an entry within its cache; None where another process did it."""
    place = folder.parent / f"{prefix}{folder.name}-{secrets.token_hex(4)}"
    try:
        folder.rename(place)
    except FileNotFoundError:
        return None
    return place


def _enter(folder: Path, root: int, key: str) -> Entry | Problem | None:
    try:
        with ownership.folder(folder, root) as here:
            try:
                return _load(folder, here, key)
            except (Damaged, ValueError, KeyError, TypeError) as error:
                if os.path.samestat(os.fstat(here), folder.stat()):
                    return Problem(folder, "damaged", str(error))
        return _enter(folder, root, key)  # what was read is removed; another may be there
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return Problem(folder, "damaged", "entry: expected a folder, found a file")
    except OSError as error:
        return _unreadable(folder, error)


def _load(folder: Path, here: int, key: str) -> Entry:
    image, data = (_read(folder / f"{key}.{end}", here) for end in ("cubin", "json"))
    try:
        meta = json.loads(data)
        checksum, owner = meta.pop("checksum"), meta["key"]
        size, made = meta["bytes"], combine(meta["fields"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged("metadata", "JSON with all facts", f"{error!r:.200}") from None
    if problem := _wrong_fact(meta):
        raise Damaged("metadata", *problem)
    if owner != key or made != key:
        raise Damaged("key", key[:16], (owner if owner != key else made)[:16])
    if size != len(image):
        raise Damaged("size", f"{size} bytes", f"{len(image)} bytes")
    if checksum != (found := _checksum(image, meta)):
        raise Damaged("checksum", checksum[:16], found[:16])
    return Entry(key, folder / f"{key}.cubin", image, meta)


def _wrong_fact(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is expected of the first fact that has another type, and what is found."""
    for name, kind in FACTS.items():
        if not isinstance(meta.get(name), kind):
            return f"{name} of type {kind.__name__}", f"{meta.get(name)!r:.60}"
    if not all(isinstance(each, str) for pair in meta["fields"].items() for each in pair):
        return "fields of type str", "others"
    return None


def _read(path: Path, here: int) -> bytes:
    try:
        return ownership.read(path, here)
    except FileNotFoundError:
        raise Damaged(path.suffix[1:], "a file", "none") from None


def _unreadable(path: Path, error: OSError) -> Problem:
    way_out = f"give yourself access, or set {settings.CACHE_DIR.name} to a folder of your own"
    return Problem(path, "unreadable", f"cannot be read ({error.strerror or error})", way_out)


def _checksum(image: bytes, facts: Mapping[str, Any]) -> str:
    """The SHA-256 of the cubin and of all the other facts about it."""
    return hashlib.sha256(image + json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(path, flags, _mode().file), "wb") as file:
        file.write(data)
