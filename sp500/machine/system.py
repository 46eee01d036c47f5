"""The operating system. Only this package knows which one it is: nothing else names a system or what one system has.

Linux has all that the project asks for. macOS has no control groups, no proportional set size, no limit of memory that
the kernel keeps, no adoption of orphans, and libraries that do not survive a fork. Windows: WSL2, which is Linux.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Literal

LINUX: bool = sys.platform == "linux"
"""Tests set it to False, to run on Linux what macOS would run."""
CGROUP = Path("/sys/fs/cgroup")
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU of NVIDIA's driver."""
WATCHED = "macOS"
"""How `platform.platform` begins where limits of memory are watched, and not enforced by the kernel."""


def start_method() -> Literal["fork", "spawn"]:
    """Return how processes start: a fork takes milliseconds, but libraries of macOS do not survive it."""
    return "fork" if LINUX else "spawn"


def process_limit() -> int | None:
    """Return how many processes and threads this user may have; None without a limit of the user's own."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return None if most == resource.RLIM_INFINITY else most


def open_files_limit() -> int | None:
    """Return how many files this process may open; None without a limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else most
