"""Jobs of a queue, an executor of them, and a folder of one whose manager ends with its tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from sp500.jobs.executor import Line, Request
from sp500.jobs.queue.job import NewJob
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState, Role, Status

T = TypeVar("T")


def new_job(id: str, **fields: Any) -> NewJob:
    """A job of one CPU on this machine that costs nothing, with these fields."""
    base = {
        "name": id, "spec": {}, "target": {"on": "local"}, "request": {}, "project": "p", "priority": 0,
        "queued_elsewhere": False, "demand": Resources(1), "seconds": None, "hourly": 0.0, "retries": 0,
    }  # fmt: skip
    return NewJob(id=id, **base | fields)


@contextmanager
def managed(folder: Path) -> Iterator[Path]:
    """A state folder; whoever still manages it is ended after the block."""
    yield folder
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in (process.info["cmdline"] or []):
            process.terminate()
            process.wait(120)


@dataclass
class FakeExecutor:
    """An executor whose answers a test chooses."""

    answer: Status | Exception = field(default_factory=lambda: Status(JobState.RUNNING, "runs"))
    at_submit: Exception | None = None
    submitted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def submit(self, handle: str, request: Request) -> None:
        if self.at_submit:
            raise self.at_submit
        self.submitted.append(handle)

    def status(self, handle: str) -> Status:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        yield Line(Role.HEAD, "pod", f"the log of {handle}")

    def stop(self, handle: str) -> None:
        self.stopped.append(handle)

    delete = stop


def until(reached: Callable[[], T], seconds: float = 60) -> T:
    """Wait for something that is true, and return it; the test fails when it takes longer."""
    end = time.monotonic() + seconds
    while not (result := reached()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)
    return result


def until_gone(pid: int) -> None:
    """Wait for the end of a process."""
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
