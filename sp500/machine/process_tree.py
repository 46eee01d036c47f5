"""The processes below this one: adopted when their own parents end, and ended together.

Descendants come back to this process when their own parents end (Linux: a child subreaper), also those that left for a
session of their own; so all have ended when this process has no child left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from sp500.machine import system

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. On systems without this they are not found."""
    if not system.LINUX:
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Have the kernel kill this process, a child that was just forked, when its parent is killed (Linux)."""
    if not system.LINUX:
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def birth(pid: int) -> float | None:
    """Return when a process began, by a monotonic clock; None if it is gone.

    psutil's create_time moves with the wall clock: it adds the time of the machine's start, which the kernel computes
    from that.
    """
    try:
        if not system.LINUX:
            return psutil.Process(pid).create_time()
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, psutil.Error):
        return None


def reap_children() -> tuple[dict[int, int], bool]:
    """Exit code by number of the children that have ended, -n if signal n ended it; and whether any is left."""
    exit_codes: dict[int, int] = {}
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            exit_codes[child[0]] = os.waitstatus_to_exitcode(child[1])
    except ChildProcessError:
        return exit_codes, False
    return exit_codes, True


def end_descendants() -> None:
    """Kill every descendant of this process, and return when none is left."""
    while reap_children()[1]:
        send_signal(list_below(psutil.Process()), signal.SIGKILL)
        time.sleep(0.005)  # one may have been born meanwhile, so there is another look


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each that still lives."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to the group of a child; nothing if the group is gone."""
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def list_below(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process; none of one that has ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
