"""Time both ways of W_UV, and print the lines of codegen/schema/value_bmm.py's table.

    python benchmarks/value_bmm.py [--heads 6,8,12,16] [--batch 1,16,64,128,256] [--library torch]

One way is the value kernel, the other a batched GEMM by the arrays' own library (PyTorch's, or
cuBLAS for CuPy's arrays) and the gate kernel. Both by the method of ``kgen bench``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import kgen
from kgen.codegen import schema
from kgen.codegen.bench import timing
from kgen.codegen.errors import DeviceError
from kgen.codegen.runtime import nvml
from kgen.codegen.runtime.kernel import Prepared
from kgen.codegen.schema import matrix
from kgen.codegen.schema.value_bmm import Measured
from kgen.codegen.tables import markdown

OUTPUTS, LATENT = 128, 512  # of a head
BF16, FP32_COMPUTE, DEFAULT_ALGORITHM = 14, 68, -1  # CUDA_R_16BF, CUBLAS_COMPUTE_32F, GEMM_DEFAULT
NORMAL, TRANSPOSED = 0, 1

Gemm = Callable[..., None]  # latent, w_uv, values, stream


def torch_gemm(latent: Any, w_uv: Any, values: Any, stream: Any) -> None:
    """``values`` [H, B, 128] = ``latent`` [B, H, 512] by ``w_uv`` [H, 128, 512], in PyTorch."""
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.bmm(latent.transpose(0, 1), w_uv.transpose(1, 2), out=values)


def cupy_gemm(latent: Any, w_uv: Any, values: Any, stream: Any) -> None:
    """The same by cuBLAS, as CuPy has no BF16 products of its own; arrays are BF16 bits."""
    import cupy
    import numpy as np
    from cupy_backends.cuda.libs import cublas

    batch, heads, _ = latent.shape
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    handle = cupy.cuda.device.get_cublas_handle()
    cublas.setStream(handle, stream.ptr)
    cublas.gemmStridedBatchedEx(
        *(handle, TRANSPOSED, NORMAL, OUTPUTS, batch, LATENT, one.ctypes.data),
        *(w_uv.data.ptr, BF16, LATENT, OUTPUTS * LATENT),
        *(latent.data.ptr, BF16, heads * LATENT, LATENT, zero.ctypes.data),
        *(values.data.ptr, BF16, OUTPUTS, batch * OUTPUTS),
        *(heads, FP32_COMPUTE, DEFAULT_ALGORITHM),
    )


def as_torch(array: Any) -> Any:
    """A CuPy array of BF16 bits, or of integers, as a tensor of the same memory."""
    import torch

    if array.dtype.name != "uint16":
        return torch.from_dlpack(array)
    return torch.from_dlpack(array.view("i2")).view(torch.bfloat16)


def as_cupy(array: Any) -> Any:
    """The array as it is."""
    return array


LIBRARIES: dict[str, tuple[Gemm, Callable[[Any], Any]]] = {
    "torch": (torch_gemm, as_torch),
    "cupy": (cupy_gemm, as_cupy),
}


def gemm_step(product: Gemm, gate: Prepared, *operands: Any) -> Callable[[Any], None]:
    """One launch of the GEMM and of the gate behind it."""

    def step(stream: Any) -> None:
        product(*operands, stream)
        gate(stream)

    return step


def gemm_time(heads: int, batch: int, library: str, replays: int) -> float:
    """Microseconds of the GEMM and the gate, weights cold."""
    product, convert = LIBRARIES[library]
    sets = timing.array_sets(kgen.value(heads=heads, batch=batch).plan.params)
    kernel = kgen.gate(heads=heads, batch=batch)
    values = convert(timing.device_arrays(kernel.plan.params)["values"])
    names = ("gate", "lengths", "out")
    gate = kernel.bind(values=values, **{name: convert(sets[0][name]) for name in names})
    latent = convert(sets[0]["latent"])
    steps = [gemm_step(product, gate, latent, convert(given["w_uv"]), values) for given in sets]
    return timing.graph_time(steps, replays)


def measure(heads: int, batch: int, library: str, replays: int) -> Measured:
    """Both ways at one shape."""
    kernel, _ = timing.measure(kgen.value(heads=heads, batch=batch), replays)
    return Measured(heads, batch, kernel, gemm_time(heads, batch, library, replays))


def row(found: Measured) -> tuple[str, ...]:
    """One line of the table."""
    faster = "GEMM and gate" if found.gemm < found.kernel else "value kernel"
    return f"{found.heads}x{found.batch}", f"{found.kernel:.2f}", f"{found.gemm:.2f}", faster


def entry(found: Measured) -> str:
    """The line of codegen/schema/value_bmm.py."""
    return f"        Measured({found.heads}, {found.batch}, {found.kernel:.2f}, {found.gemm:.2f}),"


def main() -> None:
    """Print the times as Markdown, then the table's lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", default="6,8,12,16")
    parser.add_argument("--batch", default="1,16,64,128,256")
    default = "torch" if importlib.util.find_spec("torch") else "cupy"
    parser.add_argument("--library", choices=LIBRARIES, default=default)
    parser.add_argument("--replays", type=int, default=30)
    args = parser.parse_args()
    known = {option.name: option for option in schema.options(schema.Value)}
    shapes = [
        (heads, batch)
        for heads in matrix.values(known["heads"], args.heads)
        for batch in matrix.values(known["batch"], args.batch)
    ]
    try:
        nvml.require()
    except DeviceError as error:
        sys.exit(str(error))
    found = [measure(*shape, args.library, args.replays) for shape in shapes]
    print(f"{timing.machine()}; GEMM by {args.library}\n")
    print(markdown(("shape", "value", "GEMM and gate", "faster"), map(row, found)))
    print("\n".join(("", f'    "{nvml.default_arch()}": (', *map(entry, found), "    ),")))


if __name__ == "__main__":
    main()
