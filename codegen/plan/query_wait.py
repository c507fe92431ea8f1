"""The plan of the poll of a query mailbox alone."""

from __future__ import annotations

from ..dims import QUERY
from ..schema import QueryWait
from ..targets import Target
from .mailbox import beside_constants, query_dtype, query_mailbox, report_of
from .model import Plan, Schedule, code_name, work
from .params import ParamTable, itemsize, num_rows

THREADS = 256


def plan(config: QueryWait, chip: Target, schedule: Schedule | None) -> Plan:
    """One CTA a token."""
    moved = config.batch * config.dcp * config.heads * QUERY * itemsize(query_dtype(config))
    schedule = schedule or Schedule("row", 1)
    return Plan(
        config=config,
        target=chip,
        schedule=schedule,
        template="query/wait.cu.j2",
        code=code_name(config, schedule),
        grid=(config.batch, 1, 1),
        cluster=1,
        threads=THREADS,
        smem=(),
        params=ParamTable(
            arrays=(query_mailbox(config, query_dtype(config)),),
            scalars=(num_rows(config.batch), *report_of(config)),
        ),
        constants=beside_constants(config),
        work=work(moved, 0, chip),
    )
