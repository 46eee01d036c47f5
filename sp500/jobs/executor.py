"""The interface of executors: five methods that each target's has.

A job is identified by its handle, a name that is used once. A request is plain data with all that an executor needs,
so that a dry run prints exactly what would be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sp500.jobs.state import Role, Status
from sp500.progress import RunProgress

Request = dict[str, Any]
"""The request that an executor gets for a job: plain data, made by its target."""


@dataclass(frozen=True)
class Line:
    """One line of a log, without its end."""

    role: Role
    source: str
    """Name of its pod; empty if the role has one process."""
    text: str


@runtime_checkable
class Executor(Protocol):
    """Starts jobs and reports on them. Every method raises Unreachable if the other side does not answer."""

    def submit(self, handle: str, request: Request) -> None:
        """Start the job. Only the first call with a handle has an effect, also among several processes.

        Raises Refused if another try would end the same.
        """

    def status(self, handle: str) -> Status:
        """Return the present status. LOST for an unknown handle."""

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Yield lines of one role or of all, oldest first: the last `tail` of each process, or all lines.

        With `follow`, until the job has ended, each line once, also over a broken connection. Raises ConfigError for a
        role whose log is not kept here.
        """

    def stop(self, handle: str) -> None:
        """Ask the job to end. `status` reports when it has. Does nothing for a job that has ended."""

    def delete(self, handle: str) -> None:
        """Remove what is kept of the job. Stops it if it still runs. Does nothing for an unknown handle."""


@runtime_checkable
class ProgressBoard(Protocol):
    """An executor that can show a job's progress to users without access to this queue."""

    def show_progress(self, handle: str, progress: RunProgress) -> None:
        """Write the progress, if it changed. Does nothing for an unknown handle."""
