"""What `kgen inspect` tells of a cubin, without a GPU."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kgen import cli
from kgen.codegen import schema
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.render import Source
from kgen.codegen.errors import CompileError, KgenError
from kgen.codegen.inspection import disasm
from kgen.codegen.inspection.disasm import Inspection
from kgen.codegen.targets import TARGETS

pytestmark = pytest.mark.nvrtc

NVFP4 = "query-h8-b8-dsa-fp8-nvfp4"


@pytest.fixture(scope="module")
def tools() -> None:
    if not disasm.nvdisasm():
        pytest.skip("nvdisasm is not installed (kgen[inspect])")


def kgen(*args: str) -> Result:
    return CliRunner().invoke(cli.kgen, args)


def inspected(slug: str, arch: str) -> Inspection:
    return disasm.inspect(schema.parse_slug(slug), arch)


def count(counts: Counter[str] | None, *parts: str) -> int:
    """How many instructions have all ``parts`` in their names."""
    assert counts
    return sum(n for name, n in counts.items() if all(part in name.split(".") for part in parts))


def test_facts_are_the_plans_and_the_cubins() -> None:
    found = inspected("query-h8-b64", "sm_90a")
    plan, resources = found.artifact.plan, found.artifact.cubin.resources
    facts = found.facts
    assert (facts["threads"], facts["smem_dynamic"]) == (plan.threads, plan.smem_bytes)
    assert (facts["registers"], facts["code_bytes"]) == (resources.registers, resources.code_bytes)
    assert facts["spill_stores"] == facts["local_bytes"] == 0
    assert facts["ctas_per_sm"] == plan.ctas_per_sm == 2


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "fit"),
    [
        (288, 96, 100_000, 2),  # shared memory
        (288, 168, 1_000, 1),  # registers: 9 warps of 5,376
        (1024, 32, 1_000, 2),  # threads
        (32, 16, 1_000, 32),  # CTAs
        (192, 26, 32, 10),  # 2,048 threads hold ten CTAs of six warps
        (288, 96, 233_000, 0),
    ],
)
def test_ctas_per_sm(threads: int, registers: int, shared: int, fit: int) -> None:
    assert disasm.ctas_per_sm(TARGETS["sm_90a"], threads, registers, shared) == fit


def test_tallies_of_text() -> None:
    sass = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0060*/              @!P0 BRA `(.L_x_0) ;
        /*0070*/             @UP0 UBLKCP.S.G [UR8], [UR4], UR6 ;
        /*0080*/                   UBLKCP.S.G [UR8], [UR4], UR6 ;
        /*0090*/                   NOP ;
"""
    assert disasm.sass_tally(sass) == {"LDC": 1, "BRA": 1, "UBLKCP.S.G": 2}
    ptx = """
.visible .entry k(.param .b64 k_param_0) {
	.reg .b32 %r<4>;
	{ .reg .b8 byte;
 cvt.rn.satfinite.e2m1x2.f32 byte, %f1, %f2;
 cvt.u32.u8 %r1, byte; }
	@%p1 bra $L_1;
	griddepcontrol.wait;
$L_1:
	ret;
"""
    expected = {
        "cvt.rn.satfinite.e2m1x2.f32": 1, "cvt.u32.u8": 1, "bra": 1, "griddepcontrol.wait": 1,
        "ret": 1,
    }  # fmt: skip
    assert disasm.ptx_tally(ptx) == expected


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_the_instructions_meant_are_there(arch: str, tools: None) -> None:
    found = inspected(NVFP4, arch)
    sass, ptx = found.sass_tally(), found.ptx_tally()
    assert count(sass, "HMMA") == count(ptx, "mma") == 56
    for name in ("LDGSTS", "UBLKCP", "STAS", "SYNCS", "ACQBULK", "PREEXIT", "LDSM"):
        assert count(sass, name), name
    assert count(sass, "F2FP", "E4M3", "SATFINITE") == count(ptx, "cvt", "e4m3x2", "satfinite")
    blackwell = arch != "sm_90a"
    assert bool(count(sass, "F2FP", "E2M1")) == blackwell
    assert bool(count(ptx, "cvt", "rn", "satfinite", "e2m1x2")) == blackwell
    assert bool(count(sass, "FMUL2")) == bool(count(ptx, "mul", "rn", "f32x2")) == blackwell


@pytest.mark.parametrize(
    ("slug", "copies"), [("query-h8-b8", "UBLKCP"), ("query-h8-b8-q_b_cp_async", "LDGSTS")]
)
def test_weights_come_as_asked(slug: str, copies: str, tools: None) -> None:
    bulk, small = (count(inspected(slug, "sm_90a").sass_tally(), n) for n in ("UBLKCP", "LDGSTS"))
    assert (bulk > 0) == (copies == "UBLKCP") and (small > 4) == (copies == "LDGSTS")


def test_release_off_never_lets_the_next_grid_start(tools: None) -> None:
    on, off = (inspected(f"query-h8-b8{end}", "sm_90a") for end in ("", "-no_release"))
    assert count(on.sass_tally(), "PREEXIT") and not count(off.sass_tally(), "PREEXIT")
    assert count(off.sass_tally(), "ACQBULK")
    assert not count(off.ptx_tally(), "griddepcontrol", "launch_dependents")


def test_command(tools: None) -> None:
    text = kgen("inspect", NVFP4, "--arch", "sm_100a").stdout
    for part in (NVFP4, "registers", "smem dynamic", "F2FP.SATFINITE.E2M1", "mul.rn.f32x2"):
        assert part in text
    (data,) = json.loads(kgen("inspect", "query_norm-b8", "--json").stdout)
    assert data["ctas_per_sm"] == 10 and data["sass"]["ACQBULK"] == 1
    assert data["ptx"]["griddepcontrol.wait"] == 1


def test_listings(tools: None) -> None:
    sass = kgen("inspect", "query_norm-b8", "--sass").stdout
    assert "MUFU.RSQ" in sass and ".target" in sass
    ptx = kgen("inspect", "query_norm-b8", "--ptx").stdout
    assert ".target sm_90a" in ptx and "rsqrt.approx.f32" in ptx and "\0" not in ptx


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disasm, "nvdisasm", lambda: None)


def test_without_nvdisasm_the_report_stays(bare: Any) -> None:
    result = kgen("inspect", "query_norm-b8")
    assert result.exit_code == 0
    assert "registers" in result.stdout and "griddepcontrol.wait" in result.stdout
    assert "SASS: needs nvdisasm: pip install 'kgen-mla[inspect]'" in result.stdout
    assert json.loads(kgen("inspect", "query_norm-b8", "--json").stdout)[0]["sass"] is None


def test_without_nvdisasm_there_is_no_sass(bare: Any) -> None:
    result = kgen("inspect", "query_norm-b8", "--sass")
    assert result.exit_code == 1 and "pip install 'kgen-mla[inspect]'" in result.stderr


def test_a_cached_kernel_is_inspected_where_compiling_is_forbidden() -> None:
    kgen("build", "query_norm-b8")
    result = kgen("inspect", "query_norm-b8", "--jit", "0")
    assert result.exit_code == 0 and "PTX: needs KGEN_JIT=1" in result.stdout
    refused = kgen("inspect", "query_norm-b8", "--jit", "0", "--ptx")
    assert refused.exit_code == 1 and "set KGEN_JIT to 1" in refused.stderr


def test_what_is_no_cubin_is_refused(tools: None) -> None:
    with pytest.raises(KgenError, match="nvdisasm failed"):
        disasm.disassemble(b"no cubin")


def test_ptx_of_a_bad_source_fails_as_its_cubin_does() -> None:
    source = Source("bad.cu", "bad.cu.j2", "bad", 'extern "C" __global__ void bad() { x; }', ())
    with pytest.raises(CompileError, match=r'bad\.cu.*identifier "x"'):
        nvrtc.ptx(source, "sm_90a")
