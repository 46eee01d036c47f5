"""`sp500 jobs status`: a job's state, the reason for it, and what it printed last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pydantic import Field

from sp500.commands.jobs import job_progress, queue_flags
from sp500.commands.verb import verb
from sp500.formatting import amount
from sp500.jobs import client
from sp500.jobs.queue.job import Job, Notice
from sp500.jobs.queue.queue import Queue
from sp500.jobs.queue.retries import clock
from sp500.jobs.state import Status as JobStatus
from sp500.progress import RunProgress


class Status(queue_flags.OneJob):
    """Show a job's state, the reason for it, its progress, its processes by role, its history and its last lines."""

    tail: int = Field(5, ge=0)
    """Lines of the log to show: what the command printed, and before it runs those of each process."""


def _show(flags: Status) -> tuple[str, int]:
    queue = client.open_queue(flags.state_dir)
    job, status = client.status(queue, flags.id)
    lines, progress = client.last_lines(queue, job, flags.tail), job_progress.read(queue, job, live=True)
    if flags.json_output:
        plain = queue_flags.plain(job, status, progress)
        return queue_flags.dump_json({**plain, "history": changes(queue, job), "log": lines}), 0
    return text(queue, job, status, progress, lines), 0


def changes(queue: Queue, job: Job) -> list[dict[str, object]]:
    """Return the job's changes of state so far, for JSON."""
    return [{"at": at, "state": str(state), "reason": reason} for at, state, reason in queue.ledger.events(job.id)]


def text(queue: Queue, job: Job, status: JobStatus | None, progress: RunProgress | None, lines: Sequence[str]) -> str:
    """Return the same for a reader, above the last lines of its log."""
    pending = [notice for notice in queue.ledger.notices() if notice.message["id"] == job.id]
    budgets = client.read_settings(queue.folder).budgets
    history = [f"{clock(at)}  {state}: {reason}" for at, state, reason in queue.ledger.events(job.id)]
    head = _head(job, status, progress, pending, budgets)
    return "\n".join([*head, *_indent("history", history), *_indent("log", lines)])


def _head(
    job: Job,
    status: JobStatus | None,
    progress: RunProgress | None,
    pending: Sequence[Notice],
    budgets: Mapping[str, float],
) -> list[str]:
    now = time.time()
    rows = {
        "state": str(job.state),
        "reason": job.reason,
        "on": job.kind.describe(job.target),
        "ran": queue_flags.format_run_time(job, now),
        **({"progress": job_progress.words(progress, now)} if progress else {}),
        "exit code": "-" if job.exit_code is None else str(job.exit_code),
        **(
            {"cost": f"{amount(job.cost(now), job.currency)}, at {amount(job.hourly, job.currency)} per hour"}
            if job.hourly
            else {}
        ),
        **({"budget": f"none for project {job.project}"} if budgets and job.project not in budgets else {}),
        "starts": f"{job.starts}" + (f", {job.failures} failed" if job.failures else ""),
    }
    if pending:
        rows["notify"] = (
            f"{len(pending)} changes not delivered yet, after {max(notice.tries for notice in pending)} tries"
        )
    if status is not None and status.replicas:
        rows["processes"] = ", ".join(
            f"{role} {replicas.ready}/{replicas.wanted}" for role, replicas in status.replicas.items()
        )
    return [job.id, *(f"  {key:<10} {value}" for key, value in rows.items())]


def _indent(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {title}", *(f"    {line}" for line in lines)] if lines else []


main = verb("jobs status", Status, _show)
