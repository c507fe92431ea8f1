"""Multicast bulk copies on the CPU: every CTA gets them apart, counted on its own mbarrier."""

from __future__ import annotations

import numpy as np
import pytest

from kgen.codegen.errors import EmulationError

from .small import arguments, kernel

pytestmark = pytest.mark.cpu

BODY = """
    const SharedAddr target = shared_addr(dynamic_shared()), barrier = target + 512;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(barrier, 256);
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
    griddepcontrol_wait();
    if (blockIdx.x == 1 && threadIdx.x == 0)
        cp_async_bulk_multicast(target, params.w_qa, 256, barrier, 0xF);
    mbarrier_wait(barrier, 0);
    bf16* row = params.q_c + blockIdx.x * params.q_c_stride;
    const int t = threadIdx.x;
    if (t < 16) store_global16(row + 8 * t, ld_shared_16(target + 16 * t));
    if (threadIdx.x == 0) {
        const uint32_t turn = atomicAdd(reinterpret_cast<uint32_t*>(params.q_c + 1024), 1u);
        row[512].bits = static_cast<uint16_t>(turn);
    }
"""


@pytest.mark.parametrize("lazy", [True, False])
def test_every_cta_gets_the_bytes_and_in_any_order(lazy: bool) -> None:
    made, orders = kernel(BODY, cluster=4), set()
    for seed in range(12):
        given = arguments(np.random.default_rng(seed))
        given["q_c"][0, 1024:1026] = 0
        made(given, seed=seed, lazy=lazy)
        for rank in range(4):
            np.testing.assert_array_equal(given["q_c"][rank, :128], given["w_qa"][:128])
        orders.add(tuple(given["q_c"][:, 512]))
    assert len(orders) > 4


@pytest.mark.parametrize(
    ("old", "new", "report"),
    [
        ("0xF);", "0xB);", r"CTA \(2, 0, 0\) thread 0 waits .* lacks 0 arrivals and 256 bytes"),
        ("0xF);", "0x1F);", "a bulk copy to the CTAs of mask 0x1f, of a cluster of 4"),
        ("0xF);", "0);", "a bulk copy to the CTAs of mask 0, of a cluster of 4"),
        ("w_qa, 256,", "w_qa, 240,", "lacks 0 arrivals and 16 bytes"),
        ("tx(barrier, 256)", "tx(barrier, 240)", "gets more bytes than it expects"),
        (
            "mbarrier_wait(barrier, 0);",
            ";",
            r"reads shared memory at \d+",
        ),
        ("fence_mbarrier_init();", ";", "whose initialisation no fence made visible"),
        ("barrier_cluster_wait();", ";", "no cluster barrier came after its initialisation"),
        ("blockIdx.x == 1 &&", "blockIdx.x < 2 &&", "which another warp writes: nothing orders"),
        (
            "params.w_qa, 256,",
            "params.w_qa + 1416, 256,",
            "outside of every array: at byte 2832 of",
        ),
        ("w_qa, 256,", "w_qa, 2048,", "2048 bytes at 0 of shared memory, which has 1024"),
    ],
)
def test_what_is_wrong_is_reported(old: str, new: str, report: str) -> None:
    assert BODY.count(old) == 1
    made = kernel(BODY.replace(old, new), cluster=4)
    with pytest.raises(EmulationError, match=report):
        for seed in range(4):
            given = arguments(np.random.default_rng(1))
            made(given, seed=seed, lazy=seed % 2 == 0)
