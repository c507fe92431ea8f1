"""The host's C++ compiler and the shared libraries that it makes, built once and kept."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from .. import settings
from ..cache import ownership
from ..cache.store import HOST_FOLDER, Cache
from ..errors import DeviceError, EmulationError

MACHINES = ("x86_64", "aarch64")
OLDEST = 12  # of g++
COMMANDS = ("g++", *(f"g++-{version}" for version in range(15, OLDEST - 1, -1)))
FLAGS = ("-std=c++20", "-I.", "-g", "-fPIC", "-ffp-contract=off", "-w")

Texts: TypeAlias = Sequence[tuple[str, str]]
"""Files by name."""


@dataclass(frozen=True)
class Host:
    """The host's compiler: its command and the version that it gives."""

    command: str
    version: str


@cache
def host() -> Host:
    """The C++ compiler here: that of ``CXX``, else the first g++ that is new enough.

    Raises
    ------
    DeviceError
        When there is none, or the machine is of a kind that has no fibers here.
    """
    if platform.machine() not in MACHINES:
        kinds = " and ".join(MACHINES)
        raise DeviceError(f"the CPU run is made for {kinds}, not for {platform.machine()}")
    chosen = os.environ.get("CXX", "").strip()
    reasons = []
    for command in (chosen,) if chosen else COMMANDS:
        found = shutil.which(command)
        version, problem = _version(found) if found else ("", "not found")
        if found and not problem:
            return Host(found, version)
        if found or command in (chosen, "g++"):
            reasons.append(f"{command}: {problem}")
    advice = f"install g++ {OLDEST} or newer (Debian: apt-get install g++), or set CXX to one"
    raise DeviceError(f"the CPU run needs a C++ compiler ({'; '.join(reasons)}): {advice}")


def _version(command: str) -> tuple[str, str]:
    """What ``command`` says of itself, and why it will not do, or nothing."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return "", f"does not run ({error})"
    line = (done.stdout.splitlines() or [""])[0]
    if "clang" in done.stdout.lower():
        return line, f"is Clang ({line}), whose instrumentation is another"
    # The last number of the first line: "g++ (Debian 12.2.0-14) 12.2.0".
    numbers = re.findall(r"\b(\d+)\.\d+(?:\.\d+)?\b", line)
    if not numbers or int(numbers[-1]) < OLDEST:
        return line, f"is {line!r}, too old"
    return line, ""


def library(
    kind: str, texts: Texts, flags: Sequence[str], build: Callable[[Path, Path], None]
) -> Path:
    """The shared library that ``build(folder, output)`` makes of ``texts``, from the cache where it
    is there. Processes may build the same one at a time: the first to finish is kept.

    Raises
    ------
    EmulationError
        When it cannot be compiled.
    DeviceError
        When there is no compiler, or the cache's folder cannot be used.
    """
    path = folder() / f"{_key(kind, texts, flags)}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as work:
        for name, text in texts:
            (Path(work) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(work) / name).write_text(text, encoding="utf-8")
        output = Path(work) / "output.so"
        build(Path(work), output)
        output.chmod(0o700)
        _keep(output, path)
    return path


def _keep(output: Path, path: Path) -> None:
    """``output`` becomes ``path`` unless that is there: it may be loaded already."""
    try:
        os.link(output, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.replace(output, path)


def folder() -> Path:
    """Where the libraries are, in the cache's folder: its owner's alone, since they are run."""
    store = Cache()
    try:
        store.make()
        path = store.root / HOST_FOLDER
        path.mkdir(mode=0o700, exist_ok=True)
        with ownership.folder(path):
            return path
    except ownership.Untrusted as error:
        raise DeviceError(f"{error}: its libraries are not run; {error.remedy}") from None
    except OSError as error:
        raise DeviceError(
            f"the cache {store.root} cannot be written ({error.strerror or error}): the CPU run "
            f"compiles into it; set {settings.CACHE_DIR.name} to a folder of your own"
        ) from None


def _key(kind: str, texts: Texts, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in (kind, host().version, *flags, *(text for pair in texts for text in pair)):
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()


def run(work: Path, *arguments: str) -> None:
    """Run the compiler in the folder ``work``; EmulationError with what it says if it fails."""
    command = [host().command, *arguments]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")
