# Written by `kgen generate`: the families and their fields are those of the schema.
from typing import Literal

from .codegen import dcp as dcp
from .codegen.api import value_bmm as value_bmm
from .codegen.api import warmup as warmup
from .codegen.dispatch import Dispatch as Dispatch
from .codegen.emulator.kernel import Emulation as Emulation
from .codegen.emulator.kernel import emulate as emulate
from .codegen.errors import ArgumentError as ArgumentError
from .codegen.errors import CacheWarning as CacheWarning
from .codegen.errors import CompileError as CompileError
from .codegen.errors import ConfigError as ConfigError
from .codegen.errors import DeviceError as DeviceError
from .codegen.errors import DriverError as DriverError
from .codegen.errors import EmulationError as EmulationError
from .codegen.errors import KgenError as KgenError
from .codegen.errors import MissingCompilerError as MissingCompilerError
from .codegen.errors import MissingHeaderError as MissingHeaderError
from .codegen.errors import MissingKernelError as MissingKernelError
from .codegen.errors import PlanError as PlanError
from .codegen.errors import RenderError as RenderError
from .codegen.errors import TargetError as TargetError
from .codegen.runtime.kernel import Kernel as Kernel
from .codegen.runtime.kernel import Prepared as Prepared

__version__: str

def query(
    *,
    arch: str | None = None,
    heads: int,
    batch: int,
    scheme: Literal["auto", "folded", "rows", "ksplit", "wgmma"] = "auto",
    dcp: int = 0,
    dsa: bool = False,
    fp8: bool = False,
    nvfp4: bool = False,
    late: bool = False,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
    store_qc: bool = True,
    poll: bool = True,
    transport: Literal["multicast", "unicast"] = "multicast",
    q_heads: int = 0,
    watchdog: int = 0,
    q_b_cp_async: bool = False,
) -> Kernel:
    """RMSNorm, Q_B, W_UK absorption and the paged KV insert in one kernel."""

def query_norm(
    *,
    arch: str | None = None,
    batch: int,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """The q_c rows alone, for a DSA query kernel that does not store them."""

def value(
    *,
    arch: str | None = None,
    heads: int,
    batch: int,
    q: int = 1,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """W_UV and the sigmoid gate of the attention latent."""

def gate(
    *,
    arch: str | None = None,
    heads: int,
    batch: int,
    q: int = 1,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """The sigmoid gate alone, after a batched GEMM with W_UV."""

def index_front(
    *,
    arch: str | None = None,
    batch: int,
    mx: bool = False,
    fp4: bool = False,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """The DSA indexer's front: queries, head weights and keys of its scoring."""

def query_wait(
    *,
    arch: str | None = None,
    heads: int,
    batch: int,
    dcp: int,
    q_heads: int = 0,
    bf16: bool = False,
    watchdog: int = 0,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """The poll of the query mailbox alone, for a query kernel without ``poll``."""

def dcp_value(
    *,
    arch: str | None = None,
    heads: int,
    batch: int,
    q: int = 1,
    dcp: int,
    q_heads: int = 0,
    bf16: bool = False,
    watchdog: int = 0,
    release: Literal["auto", "start", "wait", "end"] | bool = "auto",
) -> Kernel:
    """A DCP layer's tail: send, merge by LSE, W_UV, gate, re-arm the mailboxes."""
