"""`sp500 jobs status`: where a job stands, why, and what it printed last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from sp500.commands.jobs import job_progress, queue_flags
from sp500.commands.jobs.logs import texts
from sp500.errors import ResourcesError
from sp500.jobs.queue.job import Job, Notice
from sp500.jobs.queue.queue import Queue
from sp500.jobs.queue.retries import clock
from sp500.jobs.state import Status as Seen
from sp500.progress import RunProgress


class Status(queue_flags.OneJob):
    """Tell a job's state and reason, its progress, its processes by role, its history and its last lines."""

    tail: int = Field(5, ge=0)
    """Lines of the log to show, of each process."""


def main(argv: Sequence[str]) -> int:
    """Tell, to the exit code."""
    return queue_flags.verb(Status, argv, "jobs status", _told)


def _told(flags: Status) -> tuple[str, int]:
    queue = queue_flags.queue(flags.state_dir)
    queue.manage()
    job, seen = queue.refresh(queue.job(flags.id))
    lines, progress = last_lines(queue, job, flags.tail), job_progress.read(queue, job, live=True)
    if flags.json_output:
        return queue_flags.dumped(plain(queue, job, seen, progress) | {"log": lines}), 0
    return text(queue, job, seen, progress, lines), 0


def plain(queue: Queue, job: Job, seen: Seen | None, progress: RunProgress | None) -> dict[str, Any]:
    """The job and its history, for JSON."""
    history = [{"at": at, "state": str(state), "reason": reason} for at, state, reason in queue.ledger.events(job.id)]
    return queue_flags.plain(job, seen, progress) | {"history": history}


def text(queue: Queue, job: Job, seen: Seen | None, progress: RunProgress | None, lines: Sequence[str]) -> str:
    """The same for a reader, above the last lines of its log."""
    untold = [notice for notice in queue.ledger.notices() if notice.message["id"] == job.id]
    return "\n".join([*_head(job, seen, progress, untold), *_history(queue, job), *_indented("log", lines)])


def last_lines(queue: Queue, job: Job, tail: int) -> list[str]:
    """The end of its log, or why there is none to read."""
    try:
        return texts(queue.logs(job, role=None, tail=tail, follow=False), job)
    except ResourcesError as error:
        return [f"the log cannot be read: {error}"]


def _head(job: Job, seen: Seen | None, progress: RunProgress | None, untold: Sequence[Notice]) -> list[str]:
    now = time.time()
    where = {key: value for key, value in job.target.items() if key not in {"token_file", "kubeconfig"}}
    rows = {
        "state": str(job.state),
        "reason": job.reason,
        "on": ", ".join(filter(None, where.values())),
        "ran": queue_flags.lasted(job, now),
        **({"progress": job_progress.words(progress, now)} if progress else {}),
        "exit code": "-" if job.exit_code is None else str(job.exit_code),
        **({"cost": f"{job.cost(now):.2f}, at {job.hourly:.2f} per hour"} if job.hourly else {}),
        "starts": f"{job.starts}" + (f", {job.failures} failed" if job.failures else ""),
    }
    if untold:
        rows["notify"] = f"{len(untold)} changes not taken yet, after {max(one.tries for one in untold)} tries"
    if seen is not None and seen.replicas:
        rows["processes"] = ", ".join(f"{role} {one.ready}/{one.wanted}" for role, one in seen.replicas.items())
    return [job.id, *(f"  {key:<10} {value}" for key, value in rows.items())]


def _history(queue: Queue, job: Job) -> list[str]:
    return _indented(
        "history", [f"{clock(at)}  {state}: {reason}" for at, state, reason in queue.ledger.events(job.id)]
    )


def _indented(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {title}", *(f"    {line}" for line in lines)] if lines else []
