"""The state of a job: the same seven states on every executor, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class JobState(StrEnum):
    """The state of a job. A job that cannot be found any more is LOST, so no state is unknown."""

    QUEUED = "QUEUED"
    """Waits for its turn, its budget, or the time of its next try; Kueue may be what holds it."""
    PENDING = "PENDING"
    """Handed over; its command does not run yet."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    """Ended because somebody asked for it."""
    LOST = "LOST"
    """Gone without an exit status: its processes were killed, its cluster was deleted."""

    @property
    def finished(self) -> bool:
        """True if nothing more will happen."""
        return self in FINISHED


# Usage, data, deadline, and a command that cannot be started: the same again would end the same.
FINAL_CODES = frozenset({2, 3, 4, 126, 127})
FINISHED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST})


class Role(StrEnum):
    """The role of a process of a job. A job without its own cluster is one submitter: the process of its command."""

    HEAD = "head"
    WORKER = "worker"
    SUBMITTER = "submitter"


@dataclass(frozen=True)
class Replicas:
    """Processes (or pods) of one role."""

    ready: int
    wanted: int


@dataclass(frozen=True)
class Status:
    """A job as an executor sees it now."""

    state: JobState
    reason: str
    """One line: why it waits, what it does, how it ended."""
    exit_code: int | None = None
    """Exit code of the command if it ended by itself; 128 and the signal if a signal ended it."""
    started: float | None = None
    """Start of the command, in seconds since 1970 (UTC)."""
    ended: float | None = None
    """Its end."""
    placed: float | None = None
    """Time when a worker first had a node, if the executor sees that; None before, or if it was not seen."""
    replicas: Mapping[Role, Replicas] = field(default_factory=dict)
    retryable: bool = False
    """True if another start of the same command could end otherwise."""
    failures: int = 0
    """Starts that failed and that the executor itself repeated."""
    unattended: bool = False
    """True if it runs without limits, because what enforced them was killed. Submitting it again helps."""


def apply_stop(status: Status, *, stop_asked: bool) -> Status:
    """Return `status`, but stopped for a job whose stop was requested, however its end looks from outside.

    A job that came to its own end before the stop reached it keeps that end.
    """
    if not stop_asked or status.state in {JobState.SUCCEEDED, JobState.STOPPED} or not status.state.finished:
        return status
    return replace(status, state=JobState.STOPPED, reason="stopped on request", retryable=False)


def one_line(text: str) -> str:
    """Return a reason without control characters, which a terminal would obey: programs and clusters write reasons."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
