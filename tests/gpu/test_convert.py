"""Every rounding of math/convert.cuh on a GPU, against ml_dtypes through the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kgen.codegen.compiler import nvrtc, render
from kgen.codegen.reference import formats
from kgen.codegen.runtime import nvml

pytestmark = pytest.mark.gpu

KERNEL = """
#include "math/convert.cuh"
extern "C" __global__ void convert(const float* x, uint8_t* e4m3_out, uint8_t* e2m1_out,
                                   uint8_t* plain_out, uint16_t* bf16_out, float* pow2_out,
                                   float* ds_scale, uint8_t* fp4_scale, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    e4m3_out[i] = to_e4m3x2(x[i], 0.0f) & 0xFF;
    e2m1_out[i] = to_e2m1x2(x[i], 0.0f) & 0xF;
    plain_out[i] = to_e2m1_plain(x[i]);
    bf16_out[i] = to_bf16x2(x[i], 0.0f) & 0xFFFF;
    pow2_out[i] = pow2_at_or_above(fabsf(x[i]));
    ds_scale[i] = pow2_at_or_above(fmaxf(__fdiv_rn(fabsf(x[i]), 448.0f), 1e-4f));
    fp4_scale[i] = to_e4m3x2(fmaxf(fabsf(x[i]) * (1.0f / 6.0f), 0x1p-9f), 0.0f) & 0xFF;
}
"""


def run(x: np.ndarray) -> dict[str, np.ndarray]:
    cupy = pytest.importorskip("cupy")
    source = render.Source("convert.cu", "convert.cu", "convert", KERNEL, render.headers(KERNEL))
    cubin = nvrtc.compile(source, nvml.default_arch())
    module = cupy.cuda.function.Module()
    module.load(cubin.image)
    types = dict(
        e4m3=np.uint8, e2m1=np.uint8, plain=np.uint8, bf16=np.uint16, pow2=np.float32,
        ds_scale=np.float32, fp4_scale=np.uint8,
    )  # fmt: skip
    outputs = {name: cupy.full(x.size, 0xEE, dtype) for name, dtype in types.items()}
    arguments = (cupy.asarray(x), *outputs.values(), np.int32(x.size))
    module.get_function("convert")((-(-x.size // 256),), (256,), arguments)
    return {name: array.get() for name, array in outputs.items()}


def around(values: Any) -> np.ndarray:
    """FP32 ``values`` and their neighbours, of both signs."""
    exact = np.asarray(values, np.float32)
    near = np.concatenate(
        [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(0))]
    )
    return np.concatenate([near, -near])


def ties(grid: np.ndarray) -> np.ndarray:
    """The values of a format and the middles between them, with their FP32 neighbours."""
    values = np.unique(np.abs(grid[np.isfinite(grid)]))
    return around(np.concatenate([values, (values[1:] + values[:-1]) / 2]))


EVERY_BF16 = formats.from_bf16(np.arange(1 << 16, dtype=np.uint16)).astype(np.float32)
E4M3 = formats.from_e4m3(np.arange(256, dtype=np.uint8))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
POWERS = around(np.ldexp(1.0, np.arange(-120, 121)) * 448)
INPUTS = {
    "every_bf16": EVERY_BF16,
    "e4m3_ties": np.concatenate([ties(E4M3), around([448, 464, 480, 1e30])]),
    "e2m1_ties": np.concatenate([ties(E2M1), around([5, 6, 7, 1e30])]),
    "amax_powers": POWERS[np.abs(POWERS) >= np.float32(2.0**-126)],
    "amax_floor": around([0, 1e-4 * 448, 1e-5, 2.0**-13, 2.0**-14]),
    "fp4_scale_edges": around([6 * 2.0**-9, 6 * 2.0**-10, 6 * 448, 6 * 464, 6 * 480, 1e30]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_roundings(name: str) -> None:
    x = INPUTS[name]
    got = run(x)
    wide = x.astype(np.float64)
    expected: dict[str, Any]
    with np.errstate(all="ignore"):
        amax = np.abs(wide)
        sixth = formats.f32(amax * formats.f32(np.float64(1 / 6)))
        expected = {
            "e4m3": formats.to_e4m3(wide),
            "e2m1": formats.to_e2m1(wide),
            "plain": formats.to_e2m1(wide),
            "bf16": formats.to_bf16(wide),
            "fp4_scale": formats.to_e4m3(np.maximum(sixth, 2.0**-9)),
        }
    finite = np.isfinite(x)
    for key, want in expected.items():
        same = got[key] == want
        if key == "bf16":
            same |= np.isnan(x)
        if key == "fp4_scale":
            same |= np.isnan(x)
        assert same.all(), (key, x[~same][:5], got[key][~same][:5], want[~same][:5])
    floor = formats.f32(np.maximum(formats.f32(amax[finite] / 448), np.float32(1e-4)))
    np.testing.assert_array_equal(got["ds_scale"][finite], formats.pow2_at_or_above(floor))
    normal = finite & (amax >= 2.0**-126) & (amax <= 2.0**127)
    np.testing.assert_array_equal(
        got["pow2"][normal], formats.pow2_at_or_above(wide[normal].__abs__())
    )
