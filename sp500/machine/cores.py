"""CPU cores that this process may use at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sp500.machine import system
from sp500.machine.system import CGROUP


def usable_cores() -> int:
    """Return the whole cores that this process may use: its CPU affinity, and in a container at most its CPU limit."""
    cores = _allowed()
    allowed = os.cpu_count() or 1 if cores is None else len(cores)
    return max(min(allowed, int(cpu_limit() or allowed)), 1)


def _allowed() -> set[int] | None:
    """Return the numbers of the cores that this process may use; None where the system does not say."""
    if sys.platform == "linux" and system.LINUX:
        return os.sched_getaffinity(0)
    return None


def busy_seconds() -> float | None:
    """Return seconds that this process's cores were busy since the machine started, including those taken by its host.

    None in a container with a limit of CPUs, which sees all cores of its host, and where the system does not say.
    """
    allowed = _allowed()
    if sys.platform == "linux" and allowed is not None and cpu_limit() is None:
        import psutil

        cores = psutil.cpu_times(percpu=True)
        busy = [core.user + core.nice + core.system + core.irq + core.softirq + core.steal for core in cores]
        return sum(busy[core] for core in allowed if core < len(busy))
    return None


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """Return the CPUs that the container may use at once; None without a limit."""
    if not system.LINUX:
        return None
    version_2, version_1 = cgroup / "cpu.max", cgroup / "cpu" / "cpu.cfs_quota_us"
    if version_1.exists():
        quota, period = version_1.read_text(), version_1.with_name("cpu.cfs_period_us").read_text()
    elif version_2.exists():
        quota, period = version_2.read_text().split()
    else:
        return None
    return int(quota) / int(period) if quota.strip().isdecimal() else None
