"""Small kernels for the CPU run: the arguments of query_norm, another body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kgen.codegen.compiler.render import render
from kgen.codegen.emulator.executor import Emulated
from kgen.codegen.plan import plan
from kgen.codegen.plan.model import stack
from kgen.codegen.schema import make

ROWS = 4
INCLUDES = '#include "ptx/copy.cuh"\n#include "ptx/stage.cuh"\n#include "math/norm.cuh"\n'


def kernel(
    body: str, *, before: str = "", cluster: int = 1, threads: int = 32, smem: int = 1024
) -> Emulated:
    """One cluster that runs ``body``, which has ``params.qkv``, ``.w_qa``, ``.q_c`` and so on."""
    made = plan(make("query_norm", {"batch": ROWS}))
    source = render(made)
    start = source.text.index("struct Params {")
    struct = source.text[start : source.text.index("static_assert(sizeof(Params)")]
    head = f'extern "C" __global__ void {source.entry}(const __grid_constant__ Params params) {{\n'
    text = f"{INCLUDES}{struct}{before}\n{head}{body}\n}}\n"
    small = replace(
        made,
        grid=(cluster, 1, 1),
        cluster=cluster,
        threads=threads,
        smem=stack(("memory", smem, "")),
    )
    return Emulated(small, replace(source, text=text))


def arguments(rng: np.random.Generator) -> dict[str, Any]:
    """Arrays of such a kernel; outputs are poisoned."""
    return {
        "qkv": rng.integers(0, 1 << 16, (ROWS, 2112), np.uint16),
        "w_qa": rng.integers(0, 1 << 16, 1536, np.uint16),
        "q_c": np.full((ROWS, 1536), 0xFFFF, np.uint16),
    }
