"""What this machine can do: guarded probes, so that one failing never hides the others."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from .. import settings
from ..errors import CompileError, DeviceError, KgenError
from ..version import DISTRIBUTION, version

State = Literal["ok", "absent", "failed"]
Details = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """The result of one probe: ``absent`` is a capability that this machine does without."""

    name: str
    state: State
    details: Details = field(default_factory=dict)
    error: str = ""


def examine() -> tuple[Finding, ...]:
    """Every probe's finding, in order; raises nothing."""
    return tuple(_guard(name, probe) for name, probe in PROBES.items())


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed that this machine needs. A missing GPU is no failure."""
    return all(finding.state != "failed" for finding in findings)


def _guard(name: str, probe: Callable[[], Details]) -> Finding:
    try:
        return Finding(name, "ok", probe())
    except DeviceError as error:
        return Finding(name, "absent", error=str(error))
    except Exception as error:
        return Finding(name, "failed", error=f"{type(error).__name__}: {error}")


def _kgen() -> Details:
    return {
        "version": version(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
    }


def _settings() -> Details:
    """Every setting, also those that nothing here reads."""
    if wrong := list(settings.problems()):
        raise KgenError("; ".join(map(str, wrong)))
    given = ((setting.name, setting.text()) for setting in settings.SETTINGS)
    return {name: text for name, text in given if text}


def _nvrtc() -> Details:
    """The compiler, which a machine that only launches does without."""
    from ..compiler import nvrtc

    try:
        return {
            "version": nvrtc.nvrtc_build(),
            "path": nvrtc.nvrtc_path(),
            "archs": ", ".join(nvrtc.supported_archs()),
        }
    except CompileError as error:
        if settings.JIT.value():
            raise
        raise DeviceError(f"{settings.JIT.name} is 0: {error}") from None


def _headers() -> Details:
    from ..compiler.render import TEMPLATES

    own = sorted(path.name for path in TEMPLATES.glob("*/**/*.cuh") if "emulator" not in path.parts)
    return {"toolkit": "none needed", "kgen": ", ".join(own)}


def _compiler() -> Details:
    from ..emulator import toolchain

    return asdict(toolchain.host()) | {"serves": "runs of kernels on the CPU"}


def _driver() -> Details:
    from ..runtime import nvml

    return dict(nvml.driver())


def _gpus() -> Details:
    from ..runtime import nvml

    found = nvml.gpus()
    if not found:
        raise DeviceError("no GPU: NVML lists none")
    return {f"gpu {gpu.index}": asdict(gpu) for gpu in found}


def _cache() -> Details:
    from ..cache.store import Cache, Entry

    cache = Cache()
    found = list(cache.examine())
    sizes = [len(each.image) for each in found if isinstance(each, Entry)]
    return {
        "folder": str(cache.root),
        "writable": _writable(cache.root),
        "kernels": len(sizes),
        "bytes": sum(sizes),
        "not loaded": len(found) - len(sizes),
    }


def _writable(folder: Path) -> bool:
    """Whether ``folder``, or the nearest one above it that exists, takes new files."""
    present = next(path for path in (folder, *folder.parents) if path.exists())
    return present.is_dir() and os.access(present, os.W_OK | os.X_OK)


def _cubins() -> Details:
    from ..cache import installed

    found = installed.installed()
    if not found:
        raise DeviceError("no package of cubins is installed")
    return dict(line.split(": ", 1) for line in installed.holdings(found))


def _packages() -> Details:
    required = metadata.requires(DISTRIBUTION) or ()
    names = (_distribution(line) for line in required if "extra ==" not in line)
    return {name: _version(name) for name in names}


def _distribution(requirement: str) -> str:
    end = next((i for i, c in enumerate(requirement) if c in "<>=!~;[ "), len(requirement))
    return requirement[:end]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


PROBES: dict[str, Callable[[], Details]] = {
    "kgen": _kgen,
    "settings": _settings,
    "nvrtc": _nvrtc,
    "headers": _headers,
    "c++": _compiler,
    "driver": _driver,
    "gpus": _gpus,
    "cache": _cache,
    "cubins": _cubins,
    "packages": _packages,
}
