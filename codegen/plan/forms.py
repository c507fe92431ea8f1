"""The number formats of a query and its cache row, which its switches choose."""

from __future__ import annotations

from dataclasses import dataclass

from ..schema import Query


@dataclass(frozen=True)
class Form:
    """What the options dsa, fp8 and nvfp4 choose: the query's dtype, the KV row and its scale."""

    query: str
    kv_header: str
    row_bytes: int
    kv_scale: str  # the argument that scales the KV row; "" where its scales are in the row
    kv_scale_doc: str = ""


# By (dsa, fp8, nvfp4).
FORMS: dict[tuple[bool, bool, bool], Form] = {
    (False, False, False): Form(
        "e4m3", "query/kv/fp8_multiply.cuh", 576, "k_scale_inv", "multiplies the KV row"
    ),
    (True, False, False): Form("bf16", "query/kv/fp8_ds_mla.cuh", 656, ""),
    (True, True, False): Form(
        "e4m3", "query/kv/fp8_divide.cuh", 576, "k_scale", "divides the KV row"
    ),
    (True, True, True): Form("e4m3", "query/kv/nvfp4_ds_mla.cuh", 352, ""),
}


def form_of(config: Query) -> Form:
    """The form of ``config``."""
    return FORMS[config.dsa, config.fp8, config.nvfp4]


def stores_qc(config: Query) -> bool:
    """Whether ``config`` stores q_c rows."""
    return config.dsa and config.store_qc
