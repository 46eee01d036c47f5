"""Decide what the queue does with what an executor sees: retries and final states. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sp500.errors import LimitExceeded
from sp500.jobs.queue.job import Job
from sp500.jobs.state import JobState, Status, apply_stop, one_line

# Wait before the second start, doubled before each further one; those of the Job controller of Kubernetes.
FIRST_WAIT, LONGEST_WAIT = 10.0, 360.0
# Seconds by which clocks of different machines may differ, and times be rounded.
CLOCKS_APART = 2.0


def wait(failures: int, first: float = FIRST_WAIT) -> float:
    """Return the seconds until the next start after so many failed ones."""
    return float(min(first * 2 ** (failures - 1), LONGEST_WAIT))


@dataclass(frozen=True)
class Transition:
    """Change of a job that follows from the status of its present start."""

    state: JobState
    reason: str
    failures: int
    started: float | None
    """Of the present start, also if it has ended; so is `placed`."""
    placed: float | None
    exit_code: int | None = None
    ended: float | None = None
    retry_at: float | None = None
    """Earliest time of its next start; None if there is none."""

    @property
    def ends_start(self) -> bool:
        """True if the start has ended."""
        return self.state.finished or self.retry_at is not None

    @property
    def releases(self) -> bool:
        """True if the start holds nothing any more: it has ended, or another queue, such as Kueue, has preempted it."""
        return self.ends_start or self.state is JobState.QUEUED

    def columns(self) -> dict[str, object]:
        """Return the columns of the ledger that it sets."""
        seen: dict[str, object] = {"state": str(self.state), "reason": self.reason, "failures": self.failures}
        times = {"started": self.started, "placed": self.placed}
        if self.state is JobState.QUEUED:  # the next start begins again
            times = {"started": None, "placed": None}
        if self.retry_at is not None:
            return seen | times | {"submitted": False, "devices": [], "not_before": self.retry_at, "claimed": None}
        if self.state.finished:
            return seen | times | {"exit_code": self.exit_code, "ended": self.ended, "devices": [], "claimed": None}
        return seen | times

    def apply(self, job: Job) -> Job:
        """Return the job as it is then. What it has cost is settled by the manager, when it sees the same."""
        again = self.state is JobState.QUEUED
        return replace(
            job,
            state=self.state,
            reason=self.reason,
            failures=self.failures,
            submitted=self.retry_at is None,
            started=None if again else self.started,
            placed=None if again else self.placed,
            exit_code=self.exit_code,
            ended=self.ended,
        )


def advance(
    job: Job, status: Status, now: float, first_wait: float = FIRST_WAIT, elapsed: float | None = None
) -> Transition:
    """Decide what a status of the present start does to the job.

    `elapsed`: seconds since its claim, if a monotonic clock has counted them.
    """
    if elapsed is None:
        elapsed = 0.0 if job.claimed is None else now - job.claimed
    status = replace(status, reason=one_line(status.reason))
    status = apply_stop(_apply_deadline(job, status, now, elapsed), stop_asked=_is_ended_by_stop(job, status))
    started = status.started if status.started is not None else job.started
    placed = job.placed if job.placed is not None else status.placed
    if not status.state.finished:
        reason = f"stopping: {status.reason}" if job.stop_asked is not None else status.reason
        failures = max(job.failures, status.failures)
        return Transition(status.state, reason, failures, started, placed)
    reason = _final_reason(job, status)
    failed = status.state in {JobState.FAILED, JobState.LOST}
    failures = max(job.failures + failed, status.failures)
    if failed and status.retryable and job.starts <= job.retries:
        at = now + wait(failures, first_wait)
        reason = f"start {job.starts} of {job.retries + 1} failed ({reason}); the next is at {clock(at)}"
        return Transition(JobState.QUEUED, reason, failures, started, placed, retry_at=at)
    ended = max(now if status.ended is None else status.ended, started or 0.0)  # by a clock that was set back
    return Transition(status.state, reason, failures, started, placed, status.exit_code, ended)


def _final_reason(job: Job, status: Status) -> str:
    """Return the reason of an ended start.

    If it never ran, what it waited for says more than the deadline that it passed.
    """
    waited = job.state == JobState.PENDING and status.started is None and job.submitted
    if waited and status.state == JobState.FAILED and job.reason not in status.reason:
        return f"{status.reason}; before that: {job.reason}"
    return status.reason


def _is_ended_by_stop(job: Job, status: Status) -> bool:
    """Return whether a stop may have caused the end: not if it came first, also by another machine's clock."""
    return job.stop_asked is not None and (status.ended is None or status.ended > job.stop_asked - CLOCKS_APART)


def is_late(job: Job, elapsed: float) -> bool:
    """Return whether the present start, claimed `elapsed` seconds ago, is past the deadline that the queue enforces."""
    return job.deadline is not None and job.claimed is not None and elapsed > job.deadline


def _apply_deadline(job: Job, status: Status, now: float, elapsed: float) -> Status:
    """Return the status of a late start as failed and not retryable: it would be late again."""
    ended_ago = 0.0 if status.ended is None else max(now - status.ended, 0.0)
    if not is_late(job, elapsed - ended_ago) or status.state not in {JobState.FAILED, JobState.STOPPED}:
        return status
    assert job.deadline is not None
    why = f"the deadline of {job.deadline:g} s passed"
    return replace(status, state=JobState.FAILED, reason=why, exit_code=LimitExceeded.exit_code, retryable=False)


def clock(at: float) -> str:
    """Return a time of day as people read it, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
