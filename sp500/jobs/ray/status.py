"""Translate Ray's description of a job into a Status. Pure: its fields as JSON in, state and reason out."""

from __future__ import annotations

import re
import signal
from typing import Any

from sp500.jobs.log_lines import last_message, shorten
from sp500.jobs.state import FINAL_CODES, JobState, Replicas, Role, Status

# Ray's own process, which watches over the command, is gone, and the command with it.
WATCHER_GONE = frozenset(
    {
        "JOB_SUPERVISOR_ACTOR_DIED",
        "JOB_SUPERVISOR_ACTOR_START_FAILURE",
        "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    }
)
SETUP_FAILED = "RUNTIME_ENV_SETUP_FAILURE"

Answer = dict[str, Any]
"""Fields of a job, as the Jobs API gives them."""


def status(job: Answer) -> Status:
    """Return state, reason and times of a job as the Jobs API describes it.

    Ray keeps the time at which it took a job, and not that at which its command began: `started` is the former, once
    the command has begun.
    """
    state = _state(job)
    code = _exit_code(job)
    ran = bool(job.get("driver_node_id"))
    return Status(
        state=state,
        reason=_reason(job, state, code),
        exit_code=code,
        started=_seconds(job.get("start_time")) if ran else None,
        ended=_seconds(job.get("end_time")),
        replicas={} if state.finished else {Role.SUBMITTER: Replicas(int(state is JobState.RUNNING), 1)},
        retryable=_retryable(job, state, code),
    )


def unknown_job_status(address: str, handle: str) -> Status:
    """Return the status of a job that the cluster does not know."""
    reason = f"the cluster at {address} has no job {handle}: the cluster was restarted since, or the job was deleted"
    return Status(JobState.LOST, reason, retryable=True)


def announcement_pattern(handle: str, entrypoint: str) -> re.Pattern[str]:
    """Return a pattern for the two lines that Ray itself writes into the log of a command.

    The second falls anywhere among the command's first, even into the midst of one.
    """
    command = re.escape(f"Running entrypoint for job {handle}: {entrypoint}")
    return re.compile(rf"([\d :,-]+\tINFO job_manager\.py:\d+ -- Runtime env is setting up\.|{command})\n")


def _state(job: Answer) -> JobState:
    """Return our state for Ray's. LOST is a failure without an exit status, after the command had begun."""
    if job["status"] == "FAILED" and job.get("driver_node_id") and job.get("error_type") in WATCHER_GONE:
        return JobState.LOST
    return JobState(job["status"])


def _exit_code(job: Answer) -> int | None:
    code = job.get("driver_exit_code")
    if code is None:
        return None
    return 128 - code if code < 0 else int(code)  # Python reports a signal as its negative


def _retryable(job: Answer, state: JobState, code: int | None) -> bool:
    if state not in {JobState.FAILED, JobState.LOST}:
        return False
    return code not in FINAL_CODES and job.get("error_type") != SETUP_FAILED


def _reason(job: Answer, state: JobState, code: int | None) -> str:
    message = str(job.get("message") or "")
    if code:
        # What Ray says of it, on a line, and the end of the log.
        log = announcement_pattern(job["submission_id"], job["entrypoint"]).sub("", message.partition("\n")[2])
        return shorten(": ".join(filter(None, [_describe_exit(code), last_message(log)])))
    if job.get("error_type") == SETUP_FAILED:
        return shorten(f"its environment on the cluster cannot be made, now or by a retry: {last_message(message)}")
    # The identities of Ray's own actors are indented.
    text = " ".join(line for line in message.splitlines() if not line.startswith("\t"))
    return shorten(text) or f"Ray says {state.lower()}, and no more"


def _describe_exit(code: int) -> str:
    names = {128 + number: number.name for number in signal.Signals}
    return f"exit code {code}" + (f" ({names[code]})" if code in names else "")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
