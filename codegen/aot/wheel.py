"""Kernels built ahead of time, as an installable wheel: cubins and one manifest.

The wheel's bytes follow from its contents only: members in order, one date, nothing compressed
(compressors differ between machines).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..cache import installed
from ..cache.keys import Request
from ..compiler import nvrtc
from ..compiler.render import render
from ..errors import ConfigError
from ..version import DISTRIBUTION

if TYPE_CHECKING:
    from ..build import Artifact

NAME = "kgen-cubins"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_.]+[A-Za-z0-9]+)*")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]*[a-z0-9])?")
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can say


@dataclass(frozen=True)
class Label:
    """Name and version of a package to be; ConfigError where a wheel cannot have them."""

    name: str = NAME
    version: str = "0"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.module in ("kgen", "kgen_mla"):
            allowed = "allowed are letters, digits and single -, _ or . between, and not kgen's own"
            raise ConfigError("--name", self.name, allowed)
        if not _VERSION.fullmatch(self.version):
            raise ConfigError("--package-version", self.version, "allowed is one such as 1.2.3")

    @property
    def module(self) -> str:
        """The folder that the wheel installs."""
        return re.sub(r"[-_.]+", "_", self.name).lower()

    @property
    def stem(self) -> str:
        """What the wheel's file name and its metadata folder begin with."""
        return f"{self.module}-{self.version}"

    @property
    def file(self) -> str:
        """The wheel's file name: a cubin is for a GPU, whatever its host."""
        return f"{self.stem}-py3-none-any.whl"


def manifest(artifacts: Iterable[Artifact]) -> dict[str, Any]:
    """All that is known of the kernels and their cubins, in the order of names; sizes in bytes."""
    made = _ordered(artifacts)
    layouts = {
        installed.layout_hash(data): data
        for data in (installed.layout(artifact.plan.params) for artifact in made)
    }
    return {
        **installed.versions(),
        "nvrtc": nvrtc.nvrtc_build(),
        "layouts": layouts,
        "cubins": [_cubin_facts(artifact) for artifact in cubins(made).values()],
        "kernels": [_kernel_facts(artifact) for artifact in made],
    }


def _ordered(artifacts: Iterable[Artifact]) -> list[Artifact]:
    return sorted(artifacts, key=lambda each: (each.plan.config.slug, each.plan.target.name))


def cubins(artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    """A kernel for each cubin among ``artifacts``, by a name for its file; in order of names."""
    named = {
        f"{each.plan.code}-{each.plan.target.name}": each for each in _ordered(artifacts)[::-1]
    }
    return dict(sorted(named.items()))


def wheel(artifacts: Iterable[Artifact], label: Label) -> bytes:
    """The wheel's bytes: the same for the same kernels, in whatever order, and label."""
    made = tuple(artifacts)
    listing = manifest(made)
    files = {f"{label.module}/{_file(a)}": a.cubin.image for a in cubins(made).values()}
    files[f"{label.module}/{installed.MANIFEST}"] = json.dumps(listing, indent=1).encode() + b"\n"
    files[f"{label.module}/__init__.py"] = b'"""Kernels that kgen built ahead of time."""\n'
    return _zipped(dict(sorted(files.items())) | _metadata(label, listing["kgen"]), label)


def _file(artifact: Artifact) -> str:
    plan = artifact.plan
    return f"cubins/{plan.code}-{plan.target.name}.cubin"


def _cubin_facts(artifact: Artifact) -> dict[str, Any]:
    plan, cubin = artifact.plan, artifact.cubin
    return {
        "kernel": plan.config.kernel,
        "name": plan.code,
        "code": _code(artifact),
        "file": _file(artifact),
        "bytes": len(cubin.image),
        "checksum": hashlib.sha256(cubin.image).hexdigest(),
        "key": artifact.key,
        "params": installed.layout_hash(installed.layout(plan.params)),
        "threads": plan.threads,
        "cluster": plan.cluster,
        "smem_dynamic": plan.smem_bytes,
        **cubin.facts,
        "seconds": 0.0,  # the same kernels give the same bytes
    }


def _kernel_facts(artifact: Artifact) -> dict[str, Any]:
    plan = artifact.plan
    name = {"config": plan.config.slug, "arch": plan.target.name}
    return name | {"code": _code(artifact), "grid": plan.grid}


def _code(artifact: Artifact) -> str:
    return Request(artifact.plan, render(artifact.plan)).code


def _metadata(label: Label, kgen: str) -> dict[str, bytes]:
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {label.name}\nVersion: {label.version}\n"
        "Summary: CUDA kernels that kgen built ahead of time\n"
        f"Requires-Dist: {DISTRIBUTION}=={kgen}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: kgen\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[{installed.GROUP}]\n{label.name} = {label.module}\n",
    }
    return {f"{label.stem}.dist-info/{name}": text.encode() for name, text in texts.items()}


def _zipped(files: Mapping[str, bytes], label: Label) -> bytes:
    record = f"{label.stem}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {**files, record: "".join([*lines, f"{record},,\n"]).encode()}.items():
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system, member.external_attr = 3, 0o100644 << 16  # Unix, a plain file
            archive.writestr(member, data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
