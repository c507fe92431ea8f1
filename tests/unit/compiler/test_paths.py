"""Whether PTX waits for the grids before it on every path."""

from __future__ import annotations

import pytest

from kgen.codegen.compiler.paths import always_waits

WAIT = "griddepcontrol.wait;"


def kernel(*lines: str) -> str:
    body = "\n".join(f"\t{line}" for line in lines)
    return (
        f".visible .entry kgen_x(\n\t.param .u64 p\n)\n{{\n{body}\n}}\n.entry other()\n{{\nret;\n}}"
    )


@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        ((WAIT, "ret;"), True),
        (("ret;",), False),
        (("@%p1 ret;", WAIT, "ret;"), False),
        (("@%p1 bra $L1;", WAIT, "$L1:", "ret;"), False),
        (("@%p1 bra $L1;", WAIT, "ret;", "$L1:", WAIT, "exit;"), True),
        (("$L0:", "@!%p1 bra $L0;", WAIT, "ret;"), True),
        (("bra.uni $L1;", "ret;", "$L1:", WAIT, "ret;"), True),
        (("$L0:", "bra.uni $L0;"), True),  # never ends, and so ends on no path without a wait
        (("@%p1 trap;", WAIT, "ret;"), True),
        (("brx.idx %r1, $T;", WAIT, "ret;"), False),
        (("mov.u32 %r1, 0;",), False),
    ],
)
def test_paths(lines: tuple[str, ...], waits: bool) -> None:
    assert always_waits(kernel(*lines), "kgen_x") is waits
