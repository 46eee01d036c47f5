"""CPU cores that this process may use at once."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Whole cores that this process may use: its CPU affinity, and in a container at most its CPU limit."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(allowed, int(cpu_limit() or allowed)), 1)


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """CPUs that the container may use at once; None without a limit."""
    two, one = cgroup / "cpu.max", cgroup / "cpu" / "cpu.cfs_quota_us"
    if one.exists():
        quota, period = one.read_text(), one.with_name("cpu.cfs_period_us").read_text()
    elif two.exists():
        quota, period = two.read_text().split()
    else:
        return None
    return int(quota) / int(period) if quota.strip().isdecimal() else None
