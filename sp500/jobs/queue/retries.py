"""What the queue does with what an executor sees: pure decisions on retries and final states."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sp500.errors import LimitExceeded
from sp500.jobs.queue.job import Job
from sp500.jobs.state import JobState, Status, apply_stop, one_line

# Wait before the second start, doubled before each further one; those of the Job controller of Kubernetes.
FIRST_WAIT, LONGEST_WAIT = 10.0, 360.0
# Seconds by which clocks of different machines may differ, and times be rounded.
CLOCKS_APART = 2.0


def wait(failures: int, first: float = FIRST_WAIT) -> float:
    """Seconds until the next start after so many failed ones."""
    return float(min(first * 2 ** (failures - 1), LONGEST_WAIT))


def changes(
    job: Job, status: Status, now: float, first_wait: float = FIRST_WAIT, elapsed: float | None = None
) -> dict[str, object]:
    """Columns of the ledger that change with what was seen of the present start.

    `elapsed`: seconds since its claim where a clock that nobody sets has counted them.
    """
    if elapsed is None:
        elapsed = 0.0 if job.claimed is None else now - job.claimed
    status = replace(status, reason=one_line(status.reason))
    status = apply_stop(_apply_deadline(job, status, now, elapsed), stop_asked=_is_ended_by_stop(job, status))
    times = {
        "started": status.started if status.started is not None else job.started,
        "placed": job.placed if job.placed is not None else status.placed,
    }
    if not status.state.finished:
        reason = f"stopping: {status.reason}" if job.stop_asked is not None else status.reason
        return times | {"state": str(status.state), "reason": reason, "failures": max(job.failures, status.failures)}
    reason = _final_reason(job, status)
    failed = status.state in {JobState.FAILED, JobState.LOST}
    failures = max(job.failures + failed, status.failures)
    if failed and status.retryable and job.starts <= job.retries:
        at = now + wait(failures, first_wait)
        return {
            "state": str(JobState.QUEUED),
            "reason": f"start {job.starts} of {job.retries + 1} failed ({reason}); the next is at {clock(at)}",
            "failures": failures,
            "submitted": False,
            "devices": [],
            "not_before": at,
            "claimed": None,
            "started": None,
            "placed": None,
        }
    ended = max(now if status.ended is None else status.ended, times["started"] or 0.0)  # by a clock that was set back
    final = {"state": str(status.state), "reason": reason, "exit_code": status.exit_code, "failures": failures}
    return times | final | {"ended": ended, "devices": [], "claimed": None}


def _final_reason(job: Job, status: Status) -> str:
    """The reason of an ended start. If it never ran, what it waited for says more than the deadline that it passed."""
    waited = job.state == JobState.PENDING and status.started is None and job.submitted
    if waited and status.state == JobState.FAILED and job.reason not in status.reason:
        return f"{status.reason}; before that: {job.reason}"
    return status.reason


def _is_ended_by_stop(job: Job, status: Status) -> bool:
    """Whether its end may have come of a stop: one that came before that, by another machine's clock too, did not."""
    return job.stop_asked is not None and (status.ended is None or status.ended > job.stop_asked - CLOCKS_APART)


def is_late(job: Job, elapsed: float) -> bool:
    """Whether the present start, claimed `elapsed` seconds ago, has passed the deadline that the queue enforces."""
    return job.deadline is not None and job.claimed is not None and elapsed > job.deadline


def _apply_deadline(job: Job, status: Status, now: float, elapsed: float) -> Status:
    """What ended because it was late has failed, and would be late again."""
    ended_ago = 0.0 if status.ended is None else max(now - status.ended, 0.0)
    if not is_late(job, elapsed - ended_ago) or status.state not in {JobState.FAILED, JobState.STOPPED}:
        return status
    assert job.deadline is not None
    why = f"the deadline of {job.deadline:g} s passed"
    return replace(status, state=JobState.FAILED, reason=why, exit_code=LimitExceeded.exit_code, retryable=False)


def clock(at: float) -> str:
    """A time of day as people read it, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
