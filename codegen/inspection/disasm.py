"""What a cubin holds, without a GPU: resources, and the instructions that its kernel is made of."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import build, settings
from ..build import Artifact
from ..errors import KgenError
from ..schema import Config
from ..tables import aligned
from ..targets import SMEM_RESERVED, Target
from ..version import advice

INSTALL = advice("inspect")
THREADS_PER_SM, CTAS_PER_SM = 2048, 32
QUARTERS = 4  # of an SM, each with registers of its own
WARP_REGISTERS = 256  # a warp's registers are given out in multiples of this

# Instructions worth a line, by the first part of their names.
SASS = {
    "HMMA": "matrix product of a warp",
    "HGMMA": "matrix product of a warp group",
    "LDSM": "matrix fragments from shared memory",
    "LDGSTS": "asynchronous copy of 16 bytes to shared memory",
    "UBLKCP": "bulk copy to shared memory",
    "STAS": "asynchronous store to a peer's shared memory",
    "SYNCS": "mbarrier",
    "ACQBULK": "wait for the grids before",
    "PREEXIT": "let the next grid start",
    "F2FP": "conversion of FP32 pairs, or from E4M3",
    "FMUL2": "packed FP32 product",
    "FADD2": "packed FP32 sum",
    "FFMA2": "packed FP32 fused product and sum",
}
PTX = {
    "cvt.rn.satfinite.e4m3x2": "conversion to E4M3 pairs",
    "cvt.rn.satfinite.e2m1x2": "conversion to E2M1 pairs",
    "mul.rn.f32x2": "packed FP32 product",
    "add.rn.f32x2": "packed FP32 sum",
    "fma.rn.f32x2": "packed FP32 fused product and sum",
    "mma.sync": "matrix product of a warp",
    "wgmma": "matrix product of a warp group",
    "ldmatrix": "matrix fragments from shared memory",
    "cp.async.cg": "asynchronous copy of 16 bytes to shared memory",
    "cp.async.bulk": "bulk copy to shared memory",
    "st.async": "asynchronous store to a peer's shared memory",
    "griddepcontrol.wait": "wait for the grids before",
    "griddepcontrol.launch_dependents": "let the next grid start",
}


@dataclass(frozen=True)
class Inspection:
    """A built kernel. Its SASS and PTX are made when first asked for."""

    artifact: Artifact

    @cached_property
    def sass(self) -> str:
        """The cubin disassembled; KgenError where nvdisasm is missing."""
        return disassemble(self.artifact.cubin.image)

    @cached_property
    def ptx(self) -> str:
        """The PTX that the cubin is assembled from."""
        return build.ptx(self.artifact.plan)

    def listings(self, sass: bool, ptx: bool) -> list[str]:
        """The texts asked for."""
        return [*([self.sass] if sass else ()), *([self.ptx] if ptx else ())]

    @property
    def facts(self) -> dict[str, int]:
        """What a CTA takes; sizes in bytes, registers of a thread."""
        plan, found = self.artifact.plan, self.artifact.cubin.resources
        shared = plan.smem_bytes + found.smem_static
        return {
            "threads": plan.threads,
            "registers": found.registers,
            "smem_dynamic": plan.smem_bytes,
            "smem_static": found.smem_static,
            "local_bytes": found.local_bytes,
            "spill_stores": found.spill_stores,
            "spill_loads": found.spill_loads,
            "code_bytes": found.code_bytes,
            "ctas_per_sm": ctas_per_sm(plan.target, plan.threads, found.registers, shared),
        }

    def data(self) -> dict[str, Any]:
        """The kernel as JSON says it; ``sass`` is None where nvdisasm is missing."""
        plan = self.artifact.plan
        head = {"slug": plan.config.slug, "arch": plan.target.name, "entry": plan.entry}
        sass, ptx = self.sass_tally(), self.ptx_tally()
        return head | self.facts | {"sass": sass and dict(sass), "ptx": ptx and dict(ptx)}

    def sass_tally(self) -> Counter[str] | None:
        """How often each instruction occurs; None where nvdisasm is missing."""
        return sass_tally(self.sass) if nvdisasm() else None

    def ptx_tally(self) -> Counter[str] | None:
        """How often each instruction of the PTX occurs; None where compiling is forbidden."""
        return ptx_tally(self.ptx) if settings.JIT.value() else None

    def text(self) -> str:
        """The kernel for people."""
        plan = self.artifact.plan
        rows = [(f"  {name.replace('_', ' ')}", f"{fact:,}") for name, fact in self.facts.items()]
        parts = (
            ("SASS", self.sass_tally(), SASS, f"needs nvdisasm: {INSTALL}"),
            ("PTX", self.ptx_tally(), PTX, f"needs {settings.JIT.name}=1"),
        )
        lines = [f"{plan.config.slug} for {plan.target.name}", aligned(rows)]
        for name, counts, notable, absent in parts:
            about = f"{counts.total():,} instructions" if counts else absent
            lines += [f"  {name}: {about}", *_lines(counts or Counter(), notable)]
        return "\n".join(lines)


def inspect(config: Config, arch: str | None = None) -> Inspection:
    """The kernel of ``config``, from a cache or compiled now."""
    return Inspection(build.build(config, arch))


def ctas_per_sm(chip: Target, threads: int, registers: int, shared: int) -> int:
    """CTAs that fit on an SM at once by threads, registers and shared memory.

    A warp's registers are all of one of the SM's quarters, so that what is left in each is lost.
    """
    warps = -(-threads // 32)
    warp = -(-32 * registers // WARP_REGISTERS) * WARP_REGISTERS
    resident = chip.regs_per_sm // QUARTERS // warp * QUARTERS  # warps, by registers
    return min(
        CTAS_PER_SM,
        THREADS_PER_SM // (32 * warps),
        resident // warps,
        chip.smem_per_sm // (shared + SMEM_RESERVED),
    )


def nvdisasm() -> str | None:
    """The disassembler: that of kgen-mla[inspect], else one on the PATH."""
    from importlib import metadata

    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or ()
    except metadata.PackageNotFoundError:
        files = ()
    found = (str(file.locate()) for file in files if file.name == "nvdisasm")
    return next(found, None) or shutil.which("nvdisasm")


def disassemble(image: bytes) -> str:
    """The SASS of a cubin.

    Raises
    ------
    KgenError
        When nvdisasm is missing or refuses.
    """
    tool = nvdisasm()
    if tool is None:
        raise KgenError(f"SASS needs nvdisasm, which was not found: {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run((tool, "-c", path), capture_output=True, text=True)
    if done.returncode:
        raise KgenError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


_SASS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_PTX = re.compile(r"^[\s{]*(?:@!?%\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)(?:\s[^:\n]*)?;", re.MULTILINE)


def sass_tally(sass: str) -> Counter[str]:
    """How often each instruction occurs in ``sass``, padding left out."""
    counts = Counter(_SASS.findall(sass))
    del counts["NOP"]
    return counts


def ptx_tally(ptx: str) -> Counter[str]:
    """How often each instruction occurs in ``ptx``."""
    return Counter(_PTX.findall(ptx))


def _lines(counts: Counter[str], notable: dict[str, str]) -> Iterator[str]:
    """A line for each notable instruction that occurs."""
    rows = [
        (f"    {name}", f"{count:>5}", meaning)
        for prefix, meaning in notable.items()
        for name, count in sorted(counts.items())
        if name == prefix or name.startswith(f"{prefix}.")
    ]
    yield from aligned(rows).splitlines() if rows else ()
