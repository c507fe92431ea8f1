"""How many compiles may run at once: by cores and memory, control groups counted in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
UNKNOWN_MEMORY = 4 << 30  # bytes, where nothing tells
JOB_MEMORY = 512 << 20  # bytes; NVRTC takes about 100 MB for itself and 40 MB a job


def job_count(asked: int | None = None) -> int:
    """``asked`` jobs, or as many as there are cores; never more than cores or memory carry."""
    if asked is not None and asked < 1:
        raise ConfigError("jobs", asked, "allowed is an integer from 1")
    limit = max(1, min(cores(), memory() // JOB_MEMORY))
    return min(asked or limit, limit)


def cores() -> int:
    """The CPU cores that affinity and control groups leave, at least 1."""
    count = len(os.sched_getaffinity(0))
    for group in _groups("cpu"):
        quota, _, period = _quota(group).partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            count = min(count, int(quota) // int(period))
    return max(1, count)


def memory() -> int:
    """The bytes that this process may still take."""
    free = _available()
    for group in _groups("memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            free = min(free, int(limit) - int(used))
    return max(0, free)


def _available() -> int:
    """What the kernel says is available, or a guess where it does not say."""
    found = re.search(r"^MemAvailable:\s+(\d+)", _read(PROC / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else UNKNOWN_MEMORY


def _quota(group: Path) -> str:
    """Microseconds of CPU time and of the period that they are for, as version 2 writes them."""
    older = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
    return _read(group / "cpu.max") or older


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process' control groups (both versions) and of all above them."""
    for line in _read(PROC / "self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controllers
        folder = root / path.lstrip("/")
        yield from (root, *(each for each in (folder, *folder.parents) if root in each.parents))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
