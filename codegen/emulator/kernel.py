"""The public call that runs kernels on the CPU: NumPy arrays, checked as a launch checks them."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from ..compiler.render import Source, render
from ..errors import ConfigError
from ..plan import Plan, Schedule, itemsize
from ..plan import plan as make_plan
from ..runtime import arrays
from ..runtime.arguments import Arguments
from ..runtime.arrays import ArrayView, Fields, Layout
from ..runtime.layouts import ACCEPTED, refused
from ..schema import Config, families
from .executor import Emulated
from .launch import touched

POISON = 0xFF  # of the bytes of an output that is allocated
ALIGN = 128  # bytes, of an output that is allocated


def emulate(
    kernel: str | Config,
    *,
    arch: str = "sm_90a",
    schedule: Schedule | None = None,
    **fields: Any,
) -> Emulation:
    """The kernel of a configuration, compiled for the CPU here; no CUDA library and no GPU.

    Parameters
    ----------
    kernel
        A family with its ``fields`` (``"query", heads=8, batch=4``), a slug
        (``"query-h8-b4"``), or a configuration.
    arch
        The target that is planned for: it chooses the schedule.
    schedule
        Another way to cut the work than the target's table has.
    **fields
        As of :func:`kgen.query`.

    Raises
    ------
    ConfigError
        Naming the field, the value received and what is allowed; also with ``dcp``, since this
        call has no ranks.
    DeviceError
        Where there is no g++ 12 or newer.

    Examples
    --------
    >>> query = kgen.emulate("query", heads=8, batch=4)
    >>> out = query(qkv, w_qa=w_qa, w_kva=w_kva, w_qb=w_qb, w_uk=w_uk, cache=cache, slots=slots,
    ...             q_scale_inv=q_scale_inv, k_scale_inv=k_scale_inv, seed=7)
    """
    config = _config(kernel, fields)
    if ranks := getattr(config, "dcp", 0):
        raise ConfigError("dcp", ranks, "one rank alone would wait for the others for ever")
    return Emulation(make_plan(config, arch, schedule))


def _config(kernel: str | Config, fields: dict[str, Any]) -> Config:
    if isinstance(kernel, str) and kernel in families.KERNELS:
        return families.make(kernel, fields)
    if fields:
        name, value = next(iter(fields.items()))
        whole = kernel if isinstance(kernel, str) else kernel.slug
        raise ConfigError(name, value, f"{whole} names all fields already")
    return families.parse_slug(kernel) if isinstance(kernel, str) else kernel


class Emulation:
    """A kernel that runs on the CPU, checked harder than a GPU would check it.

    Called as a :class:`kgen.Kernel`, with NumPy arrays: ``bf16`` takes uint16 or ``ml_dtypes``'
    bfloat16, ``e4m3`` uint8 or float8_e4m3fn. Strided views are taken as on a GPU.
    """

    def __init__(self, plan: Plan, source: Source | None = None) -> None:
        self.plan = plan
        self._arguments = Arguments(plan.params)
        self._emulated = Emulated(plan, source or render(plan))
        self._arrays = {array.name: array for array in plan.params.arrays}

    @property
    def config(self) -> Config:
        """What the kernel was made for."""
        return self.plan.config

    def __call__(
        self, *array: Any, seed: int | None = None, lazy: bool = True, **arguments: Any
    ) -> Any:
        """Check the arguments, run, and return the output.

        Parameters
        ----------
        *array
            The first array; all others go by name.
        seed
            Of the scheduling; None is a random one. A report names it.
        lazy
            Asynchronous work completes only when nothing else can run; else at any moment.
        **arguments
            Arrays and numbers by name. An output that is None is allocated, poisoned with 0xFF.

        Raises
        ------
        ArgumentError
            Naming the argument, what was received and what is allowed.
        EmulationError
            When the kernel does what the hardware does not promise: the report names the CTA, the
            thread, the lines of the kernel's source and the seed.
        """
        named = self._arguments.named(array, arguments)
        call = self._arguments.check({name: self._held(name, v) for name, v in named.items()})
        outputs = tuple(held.array for held in call.outputs)
        if call.rows:
            names = [name for name, item in self._arrays.items() if item.role == "out"]
            given = named | dict(zip(names, outputs, strict=True))
            given = touched(self.plan.params, given, call.rows)
            seed = secrets.randbelow(1 << 32) if seed is None else seed
            self._emulated.run(call.packed, given, seed=seed, lazy=lazy)
        return outputs[0] if len(outputs) == 1 else outputs

    def _held(self, name: str, value: Any) -> Any:
        item = self._arrays.get(name)
        if item is None or value is None:
            return value
        if not isinstance(value, np.ndarray):
            dtypes = " or ".join(ACCEPTED[item.dtype])
            raise refused(
                name, f"{type(value).__name__} {value!r:.60}", f"a NumPy array of {dtypes}"
            )
        if item.role != "in" and not value.flags.writeable:
            raise refused(name, "an array that is read only", "one that can be written")
        return Held(value)

    def __repr__(self) -> str:
        return f"<kgen kernel {self.config.slug} for {self.plan.target.name}, on the CPU>"


class Held:
    """A NumPy array as the argument checks see one: memory of the only device there is."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class Numpy:
    """NumPy arrays, as the library that checks ask."""

    name = "numpy"

    def read(self, held: Held) -> Fields:
        array = held.array
        return array.ctypes.data, 0, array.dtype, array.shape, array.strides, self

    def layout(self, view: ArrayView) -> Layout:
        return arrays.by_bytes(view)

    def stream(self, device: int) -> int:
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Held:
        return Held(poisoned(shape, itemsize(dtype)))


def poisoned(shape: tuple[int, ...], width: int) -> np.ndarray[Any, Any]:
    """An aligned array of unsigned integers whose bytes are poison."""
    size = int(np.prod(shape)) * width
    raw = np.full(size + ALIGN, POISON, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size].view(f"u{width}").reshape(shape)


NUMPY = Numpy()
arrays.READERS[Held] = NUMPY.read
