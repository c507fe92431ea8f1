"""What plans say of mailboxes between ranks: their arrays, addresses and constants."""

from __future__ import annotations

from ..dims import QUERY
from ..schema import DcpValue, Query, QueryWait
from .forms import form_of
from .params import Array, Axis, Scalar, itemsize

Mailed = Query | QueryWait | DcpValue


def mailbox_heads(config: Mailed) -> int:
    """Rows of a token in a query mailbox."""
    return config.q_heads or config.dcp * config.heads


def mailbox_constants(config: Mailed) -> dict[str, bool | int | str]:
    """What the templates of all see."""
    return {
        "dcp": config.dcp,
        "num_heads": config.heads if config.dcp else 0,  # launch data where no mailbox has rows
        "mailbox_heads": mailbox_heads(config),
        "watchdog": config.watchdog,
        "report": "params.report" if config.watchdog else "0",
    }


def query_mailbox(config: Mailed, dtype: str) -> Array:
    """A rank's query mailbox."""
    return Array(
        "mailbox",
        dtype,
        (Axis(rows=True), Axis(mailbox_heads(config)), Axis(QUERY)),
        role="inout",
        doc="this rank's query mailbox of this parity",
    )


def sent_query(config: Query, dtype: str) -> tuple[Array, ...]:
    """Where a query goes to, and what it polls."""
    peers = Array("peers", "i64", (Axis(config.dcp),), align=8, doc="addresses of the mailboxes")
    unicast = (peers,) if config.transport == "unicast" else ()
    return (*unicast, query_mailbox(config, dtype)) if config.poll else unicast


def sent_scalars(config: Query) -> tuple[Scalar, ...]:
    """What a query that is sent takes by value."""
    address = Scalar("multicast", "i64", low=1, doc="multicast address of the mailboxes")
    multicast = (address,) if config.transport == "multicast" else ()
    return (*multicast, rank_of(config), *report_of(config))


def rank_of(config: Mailed) -> Scalar:
    """The place of this GPU."""
    return Scalar("rank", "i32", low=0, high=config.dcp - 1, doc="of this GPU among the ranks")


def report_of(config: Mailed) -> tuple[Scalar, ...]:
    """Where a watchdog writes to."""
    address = Scalar("report", "i64", low=1, doc="16 bytes of pinned host memory")
    return (address,) if config.watchdog else ()


def query_dtype(config: Mailed) -> str:
    """The dtype of what a query mailbox holds."""
    if isinstance(config, Query):
        return form_of(config).query
    return "bf16" if config.bf16 else "e4m3"


def beside_constants(config: QueryWait | DcpValue) -> dict[str, bool | int | str]:
    """What the templates of the kernels beside a query see."""
    return {
        **mailbox_constants(config),
        "value_bytes": itemsize(query_dtype(config)),
    }
