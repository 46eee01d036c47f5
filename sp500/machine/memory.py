"""Peak memory of a process, sampled from the kernel, and a child process to measure in.

PSS (proportional set size) counts a page shared by n processes as 1/n, so the parts of a node add up to the node; RSS
would count Ray's object store once per worker. The price: the kernel walks all pages for it, ten milliseconds for a
process that trains, and holds up its memory meanwhile; so it is sampled, and only as often as costs 2% of the time.
psutil is imported where it is used: training needs none of it on Linux.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sp500.errors import SP500Error, attempt
from sp500.machine.cores import CGROUP

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")
# Seconds between two samples, per second that one takes.
COST = 50
CRASHES = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""How libraries end that do not expect memory to run out."""
NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def pss_bytes(pid: int | str = "self") -> int:
    """Return the proportional set size of one process in bytes; its RSS if the kernel has no PSS."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        return _rss_bytes(pid)
    for line in rollup.read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{rollup} has no Pss line")


def _rss_bytes(pid: int | str = "self") -> int:
    statm = Path(f"/proc/{pid}/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
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


def total_bytes(cgroup: Path = CGROUP) -> int:
    """Return the memory of this machine or, if that is less, of its container."""
    version_1, version_2 = cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory.max"
    file, total = (
        version_1 if version_1.exists() else version_2,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    limit = file.read_text().strip() if file.exists() else ""
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
    of which libraries reserve more than they use: what is reserved and unused now is added.
    """
    status = Path("/proc/self/status").read_text()
    reserved = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    limit = limit_bytes + max(reserved - pss_bytes(), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


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
        limited = resource.prlimit(child.pid or 0, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
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
