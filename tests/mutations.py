"""Single edits of rendered kernels, each a bug that the CPU run has to report.

``kernel`` names one of :data:`KERNELS`. The ``nth`` place (from 0) of ``old`` in the rendered source
becomes ``new``. A report may point at the lines of the edit, or at any line with one of ``partners``:
what the removed text kept apart, or waits for what now never comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kgen.codegen.blueprint import Schedule

# Family, fields, and the schedule where another than the plan's is meant.
KERNELS: dict[str, tuple[str, dict[str, Any], Schedule | None]] = {
    "rows": ("query", {"heads": 2, "batch": 3, "dsa": True, "fp8": True}, None),
    "rows9": ("query", {"heads": 1, "batch": 9, "scheme": "rows"}, None),
    "kpair": ("query", {"heads": 2, "batch": 9, "dsa": True}, None),
    "ksplit": ("query", {"heads": 1, "batch": 20}, Schedule("ksplit", 32, 8)),
    "norm": ("query_norm", {"batch": 2}, None),
    "value": ("value", {"heads": 1, "batch": 5}, None),
    "gate": ("gate", {"heads": 1, "batch": 3}, None),
    "front": ("index_front", {"batch": 20}, Schedule("rows", 24)),
    "frontk": ("index_front", {"batch": 40}, None),
}


@dataclass(frozen=True)
class Mutation:
    """One edit."""

    name: str
    kernel: str
    old: str
    new: str = ";"
    nth: int = 0
    partners: tuple[str, ...] = ()


ABSORB = ("load_matrix(nope", "load_matrix(row + 64", "load_matrix(row")
UK = ("async_load16(uk_piece", "load_matrix_transposed(uk_piece")
SUMS = ("sums[token", "diagonal(squares, token)")
START = "start_step();\n\n    // Load x"

MUTATIONS = (
    # The query, by rows.
    Mutation("no wait for the weights", "rows", "mbarrier_wait(smem.weights_barrier(), 0);",
             partners=("load_shared16(row", "bulk_load(smem.weights()")),
    Mutation("no wait for nope", "rows", "mbarrier_wait(smem.nope_barrier(), 0);",
             partners=(*ABSORB, "store_remote(map_to_rank(target")),
    Mutation("no barrier after the partial products", "rows",
             "store_partials(smem, acc, warp, lane);\n    named_barrier<kComputeBarrier, kComputeThreads>();",
             "store_partials(smem, acc, warp, lane);\n    ;",
             partners=("sum += mine[w", "store_shared8(smem.partials()")),
    Mutation("no barrier in the sum of squares", "rows", "named_barrier<kComputeBarrier, kComputeThreads>();",
             partners=SUMS),
    Mutation("no wait for w_uk's copies", "rows", "async_wait<0>();", partners=UK),
    Mutation("no griddepcontrol.wait", "rows", "if constexpr (!kLate) wait_for_previous_grid();",
             partners=("load_fresh16(", "load_fresh_i64(params.slots", "load_kv_row(params.qkv")),
    Mutation("x is read before the wait", "rows", "cluster_wait();\n    start_step();", "cluster_wait();",
             partners=("load_fresh16(row", "store_query", "store_global16(")),
    Mutation("nope expects 16 bytes too many", "rows", "count * kNopeColumns * 2", "count * kNopeColumns * 2 + 16",
             partners=("mbarrier_wait(smem.nope_barrier(), 0)",)),
    Mutation("nope expects 16 bytes too few", "rows", "count * kNopeColumns * 2", "count * kNopeColumns * 2 - 16",
             partners=("mbarrier_init(smem.nope_barrier()", "store_remote(map_to_rank(target", *ABSORB)),
    Mutation("the weights' bytes are a row too few", "rows", "kRowsPerCta * 2 * kLoraColumns);",
             "(kRowsPerCta - 1) * 2 * kLoraColumns);",
             partners=("mbarrier_init(smem.weights_barrier()", "bulk_load(smem.weights()", "load_shared16(row")),
    Mutation("no fence after mbarrier.init", "rows", "mbarrier_init_fence();",
             partners=("mbarrier_init(", "bulk_load(", "store_remote(map")),
    Mutation("compute warps skip the cluster's wait", "rows", "cluster_wait();\n    start_step();", "start_step();",
             partners=("mbarrier_init(smem.nope_barrier()", "store_remote(map_to_rank(target")),
    Mutation("no arrival at the cluster barrier", "rows", "cluster_arrive();", partners=("cluster_wait();",)),
    Mutation("no block barrier after mbarrier.init", "rows", "__syncthreads();",
             partners=("mbarrier_init(smem.weights_barrier()", "bulk_load(smem.weights()")),
    Mutation("nope of rows from num_rows on", "rows", "if (token >= count) {", "if (false) {",
             partners=("store_remote(map_to_rank(target", "mbarrier_init(smem.nope_barrier()")),
    Mutation("latent of rows from num_rows on", "rows", "if (token < count) {", "if (true) {", 1,
             partners=("store_query_pair(",)),
    Mutation("q_c by every head", "rows", "head == 0 && warp == part", "warp == part",
             partners=("store_global16(",)),
    Mutation("KV rows without a slot", "rows", "if (slot < 0) continue;", partners=("store_kv_row(",)),
    Mutation("KV rows past the tile", "rows", "token < first + count;", "token < first + kNumTokens;",
             partners=("load_fresh_i64(params.slots", "load_kv_row(params.qkv", "store_kv_row(")),
    Mutation("a tile without rows returns at once", "rows9", "return wait_for_previous_grid();", "return;"),
    Mutation("nope waits for the other phase", "rows", "mbarrier_wait(smem.nope_barrier(), 0);",
             "mbarrier_wait(smem.nope_barrier(), 1);",
             partners=(*ABSORB, "store_remote(map_to_rank(target")),
    # The query, K cut in two.
    Mutation("no wait for the peer's sums", "kpair", "mbarrier_wait(smem.sums_barrier(), 0);",
             partners=("theirs[token", "store_remote(map_to_rank(target, peer)")),
    Mutation("no wait for the peer's products", "kpair", "mbarrier_wait(smem.received_barrier(), 0);",
             partners=("load_shared16(received)", "store_remote(map_to_rank(received, peer)")),
    Mutation("no barrier between the halves", "kpair", "    named_barrier<kComputeBarrier, kComputeThreads>();\n    if (warp < kHalfWarps)",
             "    ;\n    if (warp < kHalfWarps)", partners=("store_shared8(partial", "load_shared8(place)")),
    Mutation("no barrier after the halves", "kpair", "    named_barrier<kComputeBarrier, kComputeThreads>();\n}\n\n// The sums over",
             "    ;\n}\n\n// The sums over", partners=("store_shared8(place", "load_shared16(partial")),
    Mutation("the peer's sums expect nothing", "kpair", "mbarrier_arrive_expect(smem.sums_barrier(), kNumTokens * 4);",
             partners=("mbarrier_wait(smem.sums_barrier(), 0)",)),
    Mutation("one group of copies stays open", "kpair", "async_wait<0>();", "async_wait<1>();",
             partners=(*UK, "load_shared16(smem.w_qa()", "async_load16(smem.w_qa()")),
    Mutation("half of the weights' bytes", "kpair", "kRows * 2 * kColumns);", "kRows * kColumns);",
             partners=("mbarrier_init(smem.weights_barrier()", "bulk_load(smem.weights()", "load_shared16(row")),
    Mutation("the peer's sums go out twice", "kpair", "if (warp == 0 && lane % 4 < 2)", "if (warp < 2 && lane % 4 < 2)",
             partners=("store_remote(map_to_rank(target, peer)", "mbarrier_init(smem.sums_barrier()")),
    # The query, K cut in eight.
    Mutation("x overwrites w_uk too early", "ksplit", "named_barrier<kComputeBarrier, kComputeThreads>();  // w_uk is read",
             ";  // w_uk is read", partners=("store_shared16(smem.x()", *UK)),
    Mutation("w_uk without the other threads' copies", "ksplit",
             "async_wait<1>();\n    named_barrier<kComputeBarrier, kComputeThreads>();", "async_wait<1>();\n    ;",
             partners=UK),
    Mutation("no wait for w_uk's group", "ksplit", "async_wait<1>();", partners=UK),
    Mutation("nope overwrites x too early", "ksplit", "named_barrier<kComputeBarrier, kComputeThreads>();  // x is read",
             ";  // x is read", partners=("load_matrix(a_row", "store_remote(map_to_rank(target, peer)")),
    Mutation("products are sent before x is read", "ksplit",
             "named_barrier<kComputeBarrier, kComputeThreads>();  // x is read: a peer's nope may take its place\n"
             "    send_partials(acc, smem, part, warp, lane);",
             "send_partials(acc, smem, part, warp, lane);\n    named_barrier<kComputeBarrier, kComputeThreads>();",
             partners=("load_matrix(a_row", "store_remote(map_to_rank(target, peer)")),
    Mutation("own slice without an arrival", "ksplit", "if (warp == part) mbarrier_arrive(smem.partials_barrier());",
             partners=("mbarrier_wait(smem.partials_barrier(), 0)",)),
    Mutation("one arrival too few", "ksplit", "1 + 32);", "1 + 31);",
             partners=("mbarrier_arrive(smem.partials_barrier())", "load_shared16(smem.partials()")),
    Mutation("no wait for the sums", "ksplit", "mbarrier_wait(smem.sums_barrier(), 0);",
             partners=("sums[s * kNumTokens", "store_remote(map_to_rank(smem.sums()")),
    Mutation("no barrier before the product", "ksplit", "async_wait<0>();\n    named_barrier<kComputeBarrier, kComputeThreads>();",
             "async_wait<0>();\n    ;",
             partners=("load_matrix(a_row", "load_matrix(b_row", "store_shared16(smem.x()", "async_load16(target")),
    Mutation("no wait for the weights' group", "ksplit", "async_wait<0>();",
             partners=("load_matrix(b_row", "async_load16(target")),
    Mutation("latent of rows from num_rows on, by tiles", "ksplit", "if (token >= count) continue;",
             partners=("store_query_pair(",)),
    Mutation("no wait for the products", "ksplit", "mbarrier_wait(smem.partials_barrier(), 0);",
             partners=("load_shared16(smem.partials()", "store_shared8(mine", "store_remote(target + offset")),
    # The others.
    Mutation("no block barrier in the norm", "norm", "__syncthreads();", partners=("sum += sums[w]", "] = squares;")),
    Mutation("the norm reads before the wait", "norm", "wait_for_previous_grid();",
             partners=("load_fresh16(params.qkv",)),
    Mutation("no exit of rows from num_rows on", "norm", "if (row >= params.num_rows) return;",
             partners=("load_fresh16(params.qkv", "store_global16(params.q_c")),
    Mutation("no wait for W_UV", "value", "mbarrier_wait(barrier, 0);",
             partners=("load_shared16(", "bulk_load(weights")),
    Mutation("no barrier before W_UV's copies", "value", "__syncthreads();",
             partners=("bulk_load(weights", "mbarrier_init(barrier")),
    Mutation("no barrier before the sums", "value", "__syncthreads();", nth=1,
             partners=("load_shared16(partials", "store_shared8(mine")),
    Mutation("W_UV's bytes are a row too many", "value", "kOutputs * 2 * kLatentColumns", "(kOutputs + 1) * 2 * kLatentColumns",
             partners=("mbarrier_wait(barrier, 0)",)),
    Mutation("value stores after the exit condition", "value", "if (!valid) return;", partners=("params.out + row",)),
    Mutation("value has one row too many", "value", "row < params.num_rows;", "row <= params.num_rows;",
             partners=("params.out + row", "load_fresh8(params.gate", "load_fresh4(params.lengths")),
    Mutation("the gate has no exit condition", "gate", "if (row >= params.num_rows) return;",
             partners=("load_fresh16(params.", "store_global16(params.out", "load_fresh4(params.lengths")),
    # The indexer's front.
    Mutation("no wait for the magnitudes", "front", "mbarrier_wait(smem.amax_barrier(step), step / 2 % 2);",
             partners=("load_shared_float(smem.amax(step)", "store_remote(map_to_rank(smem.amax(step)")),
    Mutation("magnitudes always wait for phase 0", "front", "step / 2 % 2);", "0);",
             partners=("load_shared_float(smem.amax(step)", "store_remote(map_to_rank(smem.amax(step)")),
    Mutation("one buffer of magnitudes", "front", "kSmemAmax + step % 2 * kClusterSize * kStep * 4", "kSmemAmax",
             partners=("load_shared_float(smem.amax(step)", "store_remote(map_to_rank(smem.amax(step)")),
    Mutation("no barrier before the partial sums", "front",
             "named_barrier<kComputeBarrier, kComputeThreads>();\n\n        float value", ";\n\n        float value",
             partners=("value += partials", "store_shared8(smem.partials()")),
    Mutation("columns of rows from num_rows on", "front", "if (token < end) x[j]", "if (true) x[j]",
             partners=("load_fresh16(row",)),
    Mutation("peers are not told that x is read", "frontk",
             "if (threadIdx.x < kClusterSize) mbarrier_arrive_remote(map_to_rank(smem.ready_barrier(), threadIdx.x));",
             partners=("mbarrier_wait(smem.ready_barrier(), phase)",)),
    Mutation("no wait until the peers' x is read", "frontk", "mbarrier_wait(smem.ready_barrier(), phase);",
             partners=("load_matrix(a_row", "store_remote(target + 32", "store_shared16(place")),
    Mutation("ready without the other warps", "frontk",
             "named_barrier<kComputeBarrier, kComputeThreads>();\n    if (threadIdx.x < kClusterSize)", ";\n    if (threadIdx.x < kClusterSize)",
             partners=("load_matrix(a_row", "store_remote(target + 32")),
    Mutation("x overwrites the products too early", "frontk",
             "named_barrier<kComputeBarrier, kComputeThreads>();  // partial products are read", ";  // partial products are read",
             partners=("store_shared16(place", "load_shared16(smem.partials()")),
    Mutation("sums wait for the other phase", "frontk", "mbarrier_wait(smem.sums_barrier(), phase);",
             "mbarrier_wait(smem.sums_barrier(), phase ^ 1);",
             partners=("load_shared_float(smem.sums()", "store_remote(map_to_rank(smem.sums()")),
    Mutation("products expect nothing", "frontk", "mbarrier_arrive_expect(smem.partials_barrier(), kClusterSize * kSliceBytes);",
             partners=("mbarrier_wait(smem.partials_barrier(), phase)",)),
    Mutation("every lane sends its sum", "frontk", "if (sub < kClusterSize)\n", "if (sub < 2 * kClusterSize)\n",
             partners=("store_remote(map_to_rank(smem.sums()",)),
)
