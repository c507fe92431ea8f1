"""A built kernel: called with arrays, or bound to them once and launched often."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..plan import Array, Plan
from ..schema import Config
from . import streams
from .arguments import Arguments, Call
from .launcher import Launcher
from .loader import Function

if TYPE_CHECKING:
    from ..build import Artifact


class Kernel:
    """A built kernel. Calling it checks the arguments and launches.

    Threads may share one. It is loaded on a device at its first launch there, by :meth:`bind`
    or by :meth:`load`, and stays loaded.

    Arrays are CuPy's, PyTorch's, or anything with ``__cuda_array_interface__`` or DLPack, all on
    one GPU. ``bf16`` takes bfloat16 or uint16, ``e4m3`` float8_e4m3fn or uint8, ``u8`` either of
    these two. Strides of axes of extent 1 are ignored; the innermost axis is contiguous.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._arguments = Arguments(artifact.plan.params)
        self._launcher = Launcher(artifact.plan, artifact.cubin)
        self._first = self._arguments.names[0]
        self.__doc__ = "\n".join(self._about())  # what help() shows of this one

    @property
    def plan(self) -> Plan:
        """How the kernel is laid out: grid, cluster, shared memory, parameters."""
        return self.artifact.plan

    @property
    def config(self) -> Config:
        """What the kernel was built for."""
        return self.artifact.plan.config

    def __call__(self, *array: Any, stream: Any = None, pdl: bool = True, **arguments: Any) -> Any:
        """Check the arguments, launch, and return the output.

        Nothing waits for the GPU, and nothing is allocated where all outputs are given.

        Parameters
        ----------
        *array
            The first array; all others go by name (``inspect.signature`` of the kernel lists
            them with their shapes).
        stream
            A stream of CuPy, PyTorch or cuda.core, or a handle as an integer. None is the stream
            that is current, at this call, in the arrays' own library: CuPy or PyTorch, which must
            agree where arrays come from both. For other libraries it is the legacy default stream.
        pdl
            Programmatic dependent launch: start before the previous kernel of the stream ends.
        **arguments
            Arrays and numbers by name. ``num_rows`` is by default that of the row arrays, which
            must agree; rows from it on are neither read nor written, and 0 launches nothing. An
            output that is None is allocated, ``num_rows`` long.

        Returns
        -------
        array
            The output, as given or allocated: float8_e4m3fn for PyTorch, uint8 for CuPy. A tuple
            where the kernel has several.

        Raises
        ------
        ArgumentError
            Naming the argument, what was received and what is allowed.
        DeviceError
            When this GPU or its driver cannot run the kernel, or the stream is being captured
            and the kernel is not loaded yet.
        DriverError
            When the driver refuses the launch.
        """
        handle = None if stream is None else streams.handle(stream)
        call = self._arguments.check(self._arguments.named(array, arguments), handle)
        if handle is None:
            handle = streams.current(call.libraries, call.device)
        else:
            streams.check_device(stream, call.device)
            streams.after_producers(call.libraries, handle)
        if call.rows:
            function = self._launcher.function(call.device, handle)
            self._launcher.launch(function, call.packed, handle, pdl)
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def bind(self, *array: Any, pdl: bool = True, **arguments: Any) -> Prepared:
        """Check the arguments once; the result only launches.

        Takes what a call takes, but for ``stream``. The kernel is loaded on the arrays' device.
        """
        named = self._arguments.named(array, arguments)
        call = self._arguments.check(named)
        function = self._launcher.function(call.device, call.libraries[0].stream(call.device))
        return Prepared(self._launcher, function, call, pdl, tuple(named.values()))

    def load(self, device: int = 0) -> None:
        """Load the kernel on the GPU ``device``, so that its first launch need not.

        Raises
        ------
        DeviceError
            When this GPU or its driver cannot run the kernel.
        """
        self._launcher.function(device, None)

    def max_active_clusters(self, device: int = 0) -> int:
        """Clusters of the kernel that the GPU ``device`` runs at once, by the driver; 0 without
        clusters. It is loaded, as by :meth:`load`."""
        return self._launcher.function(device, None).clusters

    @property
    def __signature__(self) -> inspect.Signature:
        kinds = inspect.Parameter
        listed = [
            kinds(
                item.name,
                kinds.POSITIONAL_OR_KEYWORD if item.name == self._first else kinds.KEYWORD_ONLY,
                default=_default(item),
                annotation=item.type,
            )
            for item in self.plan.params
        ]
        extra = {"stream": None, "pdl": True}
        listed += [kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in extra.items()]
        return inspect.Signature(listed)

    def _about(self) -> Iterator[str]:
        """What the kernel is and takes, a line an argument."""
        yield f"{self.config.slug} for {self.plan.target.name}: {type(self.config).__doc__}"
        yield "\nArguments, the first by position or name, all others by name:\n"
        for item in self.plan.params:
            default = _default(item)
            note = "" if default is inspect.Parameter.empty else f" = {default}"
            role = item.role if isinstance(item, Array) and item.role != "in" else ""
            words = "; ".join(filter(None, (role, item.doc)))
            yield f"    {item.name}: {item.type}{note}  {words}".rstrip()
        yield "    stream = None, pdl = True: see kgen.Kernel.__call__"

    def __repr__(self) -> str:
        return f"<kgen kernel {self.config.slug} for {self.plan.target.name}>"


class Prepared:
    """A launch whose arguments were checked by :meth:`Kernel.bind`; the arrays are kept alive.

    No stream is kept: each launch goes to the current one of the arrays' library, or to the one
    given. Threads may share it. The arrays must stay where they are.
    """

    def __init__(
        self, launcher: Launcher, function: Function, call: Call, pdl: bool, arrays: tuple[Any, ...]
    ) -> None:
        self._launch, self._function, self._call, self._pdl = launcher.launch, function, call, pdl
        self._launcher = launcher
        self._arrays = arrays
        self._packed, self._device = call.packed, call.device
        several = len(call.libraries) > 1
        self._stream = None if several else call.libraries[0].stream
        self.out = call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def of_rows(self, rows: int) -> Prepared:
        """The same launch for ``rows`` rows, at most those that were checked."""
        if not 0 <= rows <= self._call.rows:
            raise ArgumentError(f"num_rows: got {rows!r}; allowed is 0..{self._call.rows}")
        packed = self._launcher.with_rows(self._packed, rows)
        call = self._call._replace(packed=packed, rows=rows)
        return Prepared(self._launcher, self._function, call, self._pdl, self._arrays)

    def __call__(self, stream: Any = None) -> Any:
        """Launch and return the output; ``stream`` as in :meth:`Kernel.__call__`."""
        if stream is not None:
            handle = streams.handle(stream)
            streams.check_device(stream, self._device)
        elif self._stream:
            handle = self._stream(self._device)
        else:
            handle = streams.current(self._call.libraries, self._device)
        if self._call.rows:
            self._launch(self._function, self._packed, handle, self._pdl)
        return self.out


def _default(item: Any) -> Any:
    if isinstance(item, Array):
        return None if item.role == "out" else inspect.Parameter.empty
    return item.default
