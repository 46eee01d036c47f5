"""Peak memory of a process, sampled from the kernel, and a child process to measure in.

PSS (proportional set size) counts a page shared by n processes as 1/n, so the parts of a node add up to the node; RSS
would count Ray's object store once per worker. The price: the kernel walks all pages for it, ten milliseconds for a
process that trains, and holds up its memory meanwhile; so it is sampled, and only as often as costs 2% of the time.
psutil is imported where it is used: training needs none of it on Linux.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sp500.errors import SP500Error, attempt
from sp500.machine import system
from sp500.machine.system import CGROUP

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")
# Seconds between two samples, per second that one takes.
COST = 50
CRASHES = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""How libraries end that do not expect memory to run out."""
WATCH_SECONDS, KILL_SECONDS = 0.1, 2.0
"""Where the kernel keeps no limit: between two looks at the memory, and from the error to the end of the process."""
NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def pss_bytes(pid: int | str = "self") -> int:
    """Return the proportional set size of one process in bytes; its RSS if the kernel has no PSS."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not system.LINUX or not rollup.exists():
        return _rss_bytes(pid)
    for line in rollup.read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{rollup} has no Pss line")


def _rss_bytes(pid: int | str = "self") -> int:
    if system.LINUX:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    import psutil

    return int(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)


class PeakMemory:
    """Largest PSS while the block runs: `with PeakMemory() as peak: ...; peak.bytes`.

    Of this process, or of the largest of the process trees that begin at `roots`.
    """

    def __init__(self, interval_seconds: float = 0.2, roots: Sequence[int] = ()) -> None:
        self.bytes = 0
        self._roots = tuple(roots)
        self._interval = interval_seconds
        self._largest_rss = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        pause = self._interval
        while True:
            last = self._done.wait(pause)
            started = time.perf_counter()
            self.bytes = max(self.bytes, self._now())
            pause = max(self._interval, COST * (time.perf_counter() - started))
            if last:
                return

    def _now(self) -> int:
        if self._roots:
            return max(map(tree_pss_bytes, self._roots))
        # RSS costs next to nothing: only if it is as large as ever can PSS be.
        rss = _rss_bytes()
        if rss < self._largest_rss:
            return 0
        self._largest_rss = rss
        return pss_bytes()


def tree_pss_bytes(pid: int) -> int:
    """Return the PSS of a process and all its descendants together; those that end meanwhile count nothing."""
    import psutil

    try:
        return sum_pss_bytes([psutil.Process(pid), *psutil.Process(pid).children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def sum_pss_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the PSS of some processes together; those that have ended count nothing."""
    import psutil

    total = 0
    for process in processes:
        with suppress(OSError, psutil.Error):
            total += pss_bytes(process.pid)
    return total


@dataclass(frozen=True)
class Memory:
    """Bytes of memory."""

    total: int
    """Memory of the machine, or the limit of the container."""
    free: int
    """Memory that is still free."""
    limit: int | None = None
    """Limit of the container, if it is below the machine's memory."""


def memory_here(cgroup: Path = CGROUP) -> Memory:
    """Return the memory of this machine or of its container, whichever is less."""
    import psutil

    here = psutil.virtual_memory()
    limit = total_bytes(cgroup)
    if limit >= here.total:
        return Memory(here.total, here.available)
    version_1 = cgroup / "memory" / "memory.usage_in_bytes"
    used = version_1 if version_1.exists() else cgroup / "memory.current"
    taken = int(used.read_text()) - _page_cache_bytes(used.with_name("memory.stat").read_text())
    return Memory(limit, min(here.available, limit - taken), limit)


def _page_cache_bytes(stat: str) -> int:
    """Return the bytes of files in memory, which the kernel frees on demand.

    Version 1 of cgroups counts nested ones apart.
    """
    counts = dict(line.split() for line in stat.splitlines())
    prefix = "total_" if "total_inactive_file" in counts else ""
    return sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))


def total_bytes(cgroup: Path = CGROUP) -> int:
    """Return the memory of this machine or, if that is less, of its container."""
    version_1, version_2 = cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory.max"
    file, total = (
        version_1 if version_1.exists() else version_2,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    limit = file.read_text().strip() if system.LINUX and file.exists() else ""
    return min(int(limit), total) if limit.isdecimal() else total


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out: Python's own, or that of the kernel or of an allocator."""
    text = str(error).lower()
    # A thread needs memory for its stack; without a limit of memory it is one of processes that is met.
    thread = "can't start new thread" in text and resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return isinstance(error, MemoryError) or thread or any(words in text for words in NO_MEMORY)


def limit_memory(limit_bytes: int) -> None:
    """Limit the private memory of this process to `limit_bytes`, for good.

    The kernel counts address space (RLIMIT_DATA: what NumPy, torch and Arrow allocate; shared mappings do not count),
    of which libraries reserve more than they use: what is reserved and unused now is added. Elsewhere a thread watches
    the resident memory, which may pass the limit between two looks.
    """
    if not system.LINUX:
        watched = threading.main_thread().ident
        threading.Thread(target=_watch, args=(limit_bytes, watched), name="memory-limit", daemon=True).start()
        return
    status = Path("/proc/self/status").read_text()
    reserved = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    limit = limit_bytes + max(reserved - pss_bytes(), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class MemoryLimitError(MemoryError):
    """The process passed a limit of memory that is watched."""

    def __init__(self, message: str = "over the limit of memory, which is watched and not enforced here") -> None:
        super().__init__(message)


def _watch(limit_bytes: int, thread: int) -> None:
    """Raise an error in a thread when this process passes its limit; kill the process if that does not help."""
    while True:
        time.sleep(WATCH_SECONDS)
        if _rss_bytes() <= limit_bytes:
            continue
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(MemoryLimitError))
        time.sleep(KILL_SECONDS)  # a call into C has to return first
        if _rss_bytes() > limit_bytes:
            os.kill(os.getpid(), signal.SIGKILL)


def _has_limit(pid: int) -> bool:
    """Return whether the kernel limits the memory of a child that has not been waited for."""
    if sys.platform == "linux" and system.LINUX:
        return resource.prlimit(pid, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return False


def run_in_subprocess(function: Callable[..., T], *args: Any) -> T:
    """Return `function(*args)`, run in a fresh process, which holds nothing that this one has loaded.

    Raises what the function raised, MemoryError when the kernel killed the child or a library of one with limited
    memory did, SP500Error when it ended otherwise without an answer.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, function, args))
    child.start()
    sender.close()
    try:
        outcome = receiver.recv()
    except EOFError:
        limited = _has_limit(child.pid or 0)
        child.join()
        if child.exitcode == -signal.SIGKILL:
            raise MemoryError("the kernel killed the process, as it does when memory runs out") from None
        if child.exitcode in CRASHES and limited:
            raise MemoryError("a library ended the process, as some do when their limit of memory is met") from None
        raise SP500Error(f"the process ended without an answer (exit code {child.exitcode})") from None
    finally:
        child.terminate()
        child.join()
        receiver.close()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    attempt(lambda: sender.send(function(*args)), sender.send)  # the parent raises it again
