from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgen.codegen.compiler import jobs

GIB = 1 << 30


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 cores with 16 GiB free and no control groups."""
    monkeypatch.setattr(jobs, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(jobs, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(tmp_path / "meminfo", f"MemTotal: 999 kB\nMemAvailable:   {16 * GIB // 1024} kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_groups_affinity_and_free_memory_count(fake: Path) -> None:
    assert jobs.cores() == 8
    assert jobs.memory() == 16 * GIB


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("300000 100000", 3), ("250000 100000", 2), ("50000 100000", 1)],
)
@pytest.mark.parametrize("group", ["", "user.slice/job"])
def test_a_quota_of_version_2_counts(fake: Path, group: str, quota: str, cores: int) -> None:
    write(fake / "self" / "cgroup", "0::/user.slice/job\n")
    write(fake / "cgroup" / group / "cpu.max", quota)
    assert jobs.cores() == cores


def test_a_quota_of_version_1_counts(fake: Path) -> None:
    write(fake / "self" / "cgroup", "3:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n0::/\n")
    write(fake / "cgroup" / "cpu,cpuacct" / "cpu.cfs_quota_us", "400000")
    write(fake / "cgroup" / "cpu,cpuacct" / "cpu.cfs_period_us", "200000")
    assert jobs.cores() == 2
    write(fake / "cgroup" / "cpu,cpuacct" / "cpu.cfs_quota_us", "-1")
    assert jobs.cores() == 8


def test_the_tightest_memory_limit_counts(fake: Path) -> None:
    write(fake / "self" / "cgroup", "0::/a/b\n")
    write(fake / "cgroup" / "a" / "memory.max", str(4 * GIB))
    write(fake / "cgroup" / "a" / "memory.current", str(3 * GIB))
    write(fake / "cgroup" / "a" / "b" / "memory.max", "max")
    write(fake / "cgroup" / "a" / "b" / "memory.current", str(2 * GIB))
    assert jobs.memory() == GIB
    write(fake / "cgroup" / "a" / "memory.current", str(5 * GIB))
    assert jobs.memory() == 0


def test_a_memory_limit_of_version_1_counts(fake: Path) -> None:
    write(fake / "self" / "cgroup", "2:memory:/docker/1\n")
    write(fake / "cgroup" / "memory" / "memory.limit_in_bytes", str(3 * GIB))
    write(fake / "cgroup" / "memory" / "memory.usage_in_bytes", str(GIB))
    assert jobs.memory() == 2 * GIB


def test_this_machine_can_be_asked() -> None:
    assert 1 <= jobs.cores() <= len(os.sched_getaffinity(0))
    assert jobs.memory() > 0
