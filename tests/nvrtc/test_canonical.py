"""The canonical kernels compile well: no spills, within the plan, with the instructions meant."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgen.codegen.build import Artifact, build_many
from kgen.codegen.compiler import goldens
from kgen.codegen.compiler.nvrtc import Resources
from kgen.codegen.errors import PlanError
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import parse_slug
from kgen.codegen.targets import SMEM_RESERVED, TARGETS

pytestmark = pytest.mark.nvrtc

TOOLS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)", re.MULTILINE)

# Beside the canonical ones, for what they leave out.
OTHERS = (
    "query-h8-b8-no_release",
    "query-h8-b8-q_b_cp_async",
    "query-h8-b64-no_release",
    "query-h8-b8-dsa-late",
)
BULK = ("query/folded.cu.j2", "query/rows.cu.j2", "query/kpair.cu.j2")  # Q_B comes by bulk copies


def built(slugs: tuple[str, ...], arch: str) -> list[Artifact]:
    results = build_many(map(parse_slug, slugs), [arch])
    errors = [result.error for result in results if result.error]
    if errors:
        raise errors[0]
    return [result.artifact for result in results if result.artifact]


def fits(slug: str, arch: str) -> bool:
    try:
        plan(parse_slug(slug), arch)
    except PlanError:
        return False
    return True


def ctas(made: Plan, found: Resources) -> int:
    """CTAs that an SM can hold. A warp's registers come by 256, from one quarter of the SM's."""
    per_warp = -(-found.registers * 32 // 256) * 256
    warps = made.target.regs_per_sm // 4 // per_warp * 4
    smem = made.smem_bytes + found.smem_static + SMEM_RESERVED
    return min(warps // (made.threads // 32), made.target.smem_per_sm // smem)


@pytest.mark.parametrize("arch", TARGETS)
def test_no_spills_and_room_for_the_plans_ctas(arch: str) -> None:
    slugs = tuple(slug for slug in goldens.SLUGS if fits(slug, arch))
    assert slugs
    for artifact in built(slugs, arch):
        slug, found = artifact.plan.config.slug, artifact.cubin.resources
        assert (found.spill_stores, found.spill_loads, found.local_bytes) == (0, 0, 0), slug
        assert ctas(artifact.plan, found) >= artifact.plan.ctas_per_sm, slug
        assert artifact.cubin.log == "", slug


def test_every_canonical_kernel_fits_every_target() -> None:
    """All but schemes of other chips, and index_front on sm_120a, where it has no room."""
    refused = [(s, a) for s in goldens.SLUGS for a in TARGETS if not fits(s, a)]
    large = [s for s in goldens.SLUGS if s.startswith("index_front")]
    special = [s for s in goldens.SLUGS if "-scheme." in s]
    assert [slug for slug, arch in refused if arch == "sm_120a"] == [
        slug for slug in goldens.SLUGS if slug in (*large, *special)
    ]
    assert {slug for slug, arch in refused if arch != "sm_120a"} <= set(special)


@pytest.mark.parametrize(
    ("registers", "smem", "fit"), [(96, 0, 2), (97, 0, 1), (40, 0, 2), (40, 20000, 1)]
)
def test_registers_and_shared_memory_limit_the_ctas(registers: int, smem: int, fit: int) -> None:
    made = plan(parse_slug("query-h8-b8"))
    assert ctas(made, Resources(registers, smem, 0, 0, 0, 0)) == fit


def opcodes(artifact: Artifact, folder: Path) -> Counter[str]:
    """The instructions of the cubin, without their modifiers, and how often each is there."""
    if not (TOOLS / "nvdisasm").exists():
        pytest.skip("nvdisasm is not installed (kgen[inspect])")
    path = folder / f"{artifact.plan.config.slug}.cubin"
    path.write_bytes(artifact.cubin.image)
    env = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    command = [str(TOOLS / "nvdisasm"), "-c", "-ndf", str(path)]
    text = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return Counter(OPCODE.findall(text))


def meant(made: Plan) -> dict[str, int]:
    """Instruction -> how often the kernel has it at least; 0: not at all."""
    is_query = made.config.kernel == "query"
    roles = 1 + is_query  # the KV insert's warp waits and releases for itself
    expected = {
        "ACQBULK": roles,  # griddepcontrol.wait
        "PREEXIT": int(made.release != "end"),  # .launch_dependents
    }
    if is_query:
        bulk = made.template in BULK and not made.constants.get("q_b_cp_async", False)
        expected |= {"HMMA": 1, "STAS": 1, "LDGSTS": 1, "UBLKCP": int(bulk)}
    return expected


def as_meant(found: Counter[str], least: int, name: str) -> bool:
    return found[name] >= least if least else name not in found


@pytest.mark.parametrize("arch", TARGETS)
def test_the_instructions_meant_are_in_the_cubin(arch: str, tmp_path: Path) -> None:
    slugs = tuple(slug for slug in (*goldens.SLUGS, *OTHERS) if fits(slug, arch))
    kinds = {(made.plan.template, *meant(made.plan).values()): made for made in built(slugs, arch)}
    with ThreadPoolExecutor(2) as pool:
        disassembled = list(pool.map(lambda made: opcodes(made, tmp_path), kinds.values()))
    for artifact, found in zip(kinds.values(), disassembled, strict=True):
        expected = meant(artifact.plan)
        wrong = [name for name, least in expected.items() if not as_meant(found, least, name)]
        assert wrong == [], artifact.plan.config.slug


def test_disassembly_finds_every_opcode() -> None:
    text = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
        /*0020*/              @UP1 UBLKCP [UR6], [UR4], UR8 ;
        /*10b0*/             @!UPT UIADD3 URZ, URZ, URZ, URZ ;
        /*10c0*/                   HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
    """
    assert OPCODE.findall(text) == ["LDC", "BRA", "UBLKCP", "UIADD3", "HMMA"]
