"""Ranks of two processes, by benchmarks/peers.py, which judges each step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..helpers.places import ROOT

pytestmark = pytest.mark.gpu

SCRIPT = ROOT / "benchmarks" / "peers.py"


def peers(memory: str) -> str:
    command = (sys.executable, str(SCRIPT), "--memory", memory)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{memory}: 50 steps right") == 2, done.stdout
    return done.stdout


def test_ranks_of_two_processes_by_ipc() -> None:
    """On one GPU, which the processes share in turns, or on one each."""
    peers("ipc")


def test_ranks_of_two_gpus_by_symmetric_memory() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert "GPU 1 of 2" in peers("symmetric")
