"""Peak memory of a process, sampled from the kernel, and a child process to measure in.

PSS (proportional set size) counts a page shared by n processes as 1/n, so the parts of a node add up to the node; RSS
would count Ray's object store once per worker. The price: reading it costs about a millisecond, so it is sampled.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from sp500.errors import SP500Error

T = TypeVar("T")


def pss_bytes(pid: int | str = "self") -> int:
    """Proportional set size of one process in bytes; its RSS where the kernel does not tell PSS."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        return int(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)
    for line in rollup.read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{rollup} has no Pss line")


class PeakMemory:
    """Largest PSS of this process while the block runs: `with PeakMemory() as peak: ...; peak.bytes`."""

    def __init__(self, interval_seconds: float = 0.2) -> None:
        self.bytes = 0
        self._interval = interval_seconds
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
        while True:
            self.bytes = max(self.bytes, pss_bytes())
            if self._done.wait(self._interval):
                self.bytes = max(self.bytes, pss_bytes())
                return


def in_child(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)` in a fresh process, which holds nothing that this one has loaded.

    Raises what the function raised, and SP500Error when the child was killed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, function, args))
    child.start()
    sender.close()
    try:
        outcome = receiver.recv()
    except EOFError:
        child.join()
        raise SP500Error(f"the process was killed (exit code {child.exitcode}): too little memory?") from None
    finally:
        child.terminate()
        child.join()
        receiver.close()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        sender.send(function(*args))
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        sender.send(error)
