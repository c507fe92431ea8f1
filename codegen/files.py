"""Files that are there whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .errors import KgenError


def replace(path: Path, data: bytes) -> None:
    """``data`` becomes the file ``path``, in one step.

    Raises
    ------
    KgenError
        With what was needed and what to do; nothing is left behind.
    """
    beside = ""
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)
        raise KgenError(
            f"{path}: {len(data):,} bytes cannot be written ({error.strerror or error});"
            f" make room in {path.parent}, or name another folder"
        ) from None


def _umask() -> int:
    """The process's umask; reading it is setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
