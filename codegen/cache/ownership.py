"""Which files of a cache may be loaded: one's own and root's, that nobody else can write.

A file is checked by the descriptor that it is then read from, so that none is swapped between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import settings

FLAGS = os.O_RDONLY | os.O_CLOEXEC
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(Exception):
    """A file or folder that is not loaded: where it is, why, and the way out."""

    def __init__(self, path: Path, reason: str, way_out: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path, self.reason = path, reason
        self.remedy = f"{way_out}, or set {settings.CACHE_TRUST.name}=any to load it all the same"


@contextmanager
def folder(path: Path, parent: int | None = None) -> Iterator[int]:
    """A descriptor of the folder ``path``, the one of that name in ``parent`` where it is given.

    Raises
    ------
    Untrusted
        When it breaks a rule.
    OSError
        When it cannot be opened.
    """
    descriptor = _open(path, parent, os.O_DIRECTORY)
    try:
        _check(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: Path, parent: int) -> bytes:
    """The contents of the file of ``path``'s name in ``parent``; it raises as :func:`folder`."""
    with open(_open(path, parent, os.O_NONBLOCK), "rb") as file:  # a pipe must not block
        if not stat.S_ISREG(_check(path, file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def _any() -> bool:
    return settings.CACHE_TRUST.value() == "any"


def _open(path: Path, parent: int | None, flags: int) -> int:
    name = path if parent is None else path.name
    try:
        return os.open(name, FLAGS | flags | (0 if _any() else os.O_NOFOLLOW), dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, parent):
            raise Untrusted(path, "is a symbolic link", "name the folder itself") from None
        raise


def _is_link(name: Path | str, parent: int | None) -> bool:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISLNK(found.st_mode) and not _any()


def _check(path: Path, descriptor: int) -> os.stat_result:
    found = os.fstat(descriptor)
    if _any():
        return found
    if found.st_uid not in (os.geteuid(), 0):
        reason = f"is owned by uid {found.st_uid}, neither by you (uid {os.geteuid()}) nor by root"
        raise Untrusted(path, reason, f"set {settings.CACHE_DIR.name} to a folder of your own")
    if found.st_mode & WRITABLE:
        reason = f"is writable by group or others (mode {stat.S_IMODE(found.st_mode):04o})"
        raise Untrusted(path, reason, f"chmod go-w {path}")
    return found
