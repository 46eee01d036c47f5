"""CPU cores that this process may use at once."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the whole cores that this process may use: its CPU affinity, and in a container at most its CPU limit."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(allowed, int(cpu_limit() or allowed)), 1)


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """Return the CPUs that the container may use at once; None without a limit."""
    version_2, version_1 = cgroup / "cpu.max", cgroup / "cpu" / "cpu.cfs_quota_us"
    if version_1.exists():
        quota, period = version_1.read_text(), version_1.with_name("cpu.cfs_period_us").read_text()
    elif version_2.exists():
        quota, period = version_2.read_text().split()
    else:
        return None
    return int(quota) / int(period) if quota.strip().isdecimal() else None
