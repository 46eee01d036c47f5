"""Shared parts of the queue's verbs: its folder, its flags, and a job as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import field_validator

from sp500.commands.jobs import job_progress
from sp500.config import Frozen
from sp500.jobs.queue.job import Job
from sp500.jobs.state import Status
from sp500.progress import RunProgress


class QueueFlags(Frozen):
    """Flags of every verb that asks the queue."""

    state_dir: Path | None = None
    """Folder of the queue. Default: $XDG_STATE_HOME/sp500, or ~/.local/state/sp500."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """JSON on stdout; all else goes to stderr."""


class OneJob(QueueFlags):
    """Flags of a verb on one job."""

    id: tyro.conf.Positional[str]
    """The job's id, as `submit` printed it."""


class SomeJobs(QueueFlags):
    """Flags of a verb on jobs."""

    ids: tyro.conf.Positional[tuple[str, ...]]
    """Ids of jobs, as `submit` printed them."""

    @field_validator("ids")
    @classmethod
    def _are_some(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        if not ids:
            raise ValueError("no job is named; sp500 jobs list shows them")
        return ids


def plain(job: Job, status: Status | None = None, progress: RunProgress | None = None) -> dict[str, object]:
    """Return a job for JSON."""
    now = time.time()
    row: dict[str, object] = {
        "id": job.id,
        "name": job.name,
        "on": job.kind.name,
        "state": str(job.state),
        "reason": job.reason,
        "exit_code": job.exit_code,
        "project": job.project,
        "priority": job.priority,
        "starts": job.starts,
        "failures": job.failures,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "cost": job.cost(now),
        "currency": job.currency,
        "progress": job_progress.plain(progress, now),
    }
    if status is not None:
        row["replicas"] = {
            str(role): {"ready": replicas.ready, "wanted": replicas.wanted}
            for role, replicas in status.replicas.items()
        }
    return row


def dump_json(data: object) -> str:
    """Return JSON as all verbs print it."""
    return json.dumps(data, indent=1)


def format_run_time(job: Job, now: float) -> str:
    """Return how long a job has run, as `1:02:03`; a dash for one that has not started."""
    if job.started is None:
        return "-"
    # A clock that was set back makes no run shorter than nothing.
    seconds = max(int((now if job.ended is None else job.ended) - job.started), 0)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
