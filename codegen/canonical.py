"""The canonical configurations: those whose source is committed under ``generated/``."""

from __future__ import annotations

from .schema import Config, parse_slug

SLUGS = (
    "query-h6-b1",
    "query-h6-b64",
    "query-h8-b1",
    "query-h8-b8",
    "query-h8-b16",
    "query-h8-b32",
    "query-h8-b64",
    "query-h8-b128",
    "query-h12-b8",
    "query-h16-b256",
    "query-h128-b1",
    "query-h128-b64",
    "query-h8-b8-dsa",
    "query-h8-b64-dsa",
    "query-h8-b8-dsa-fp8",
    "query-h8-b64-dsa-fp8-nvfp4",
    "query-h8-b16-dsa-late",
    "query-h8-b8-dcp2-transport.unicast",
    "query_norm-b64",
    "value-h8-b64",
    "gate-h8-b64",
    "dcp_value-h8-b16-dcp2",
    "index_front-b8",
    "index_front-b32",
    "index_front-b32-fp4",
)


def configs() -> tuple[Config, ...]:
    """The canonical configurations, in order."""
    return tuple(map(parse_slug, SLUGS))
