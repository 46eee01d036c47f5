"""`sp500 jobs logs`: what a job prints, by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sp500.commands.jobs import queue_flags
from sp500.jobs import client
from sp500.jobs.state import Role


class Logs(queue_flags.OneJob):
    """Print a job's output, or follow it; on Kubernetes each line after its role and pod."""

    follow: bool = False
    """Until the job has ended, over its further starts as well."""
    tail: int | None = Field(None, ge=0)
    """The last lines of each process. Default: all."""
    start: int | None = Field(None, ge=1)
    """Attempt number, from 1. Default: the last."""
    role: Literal["head", "worker", "submitter"] | None = None
    """Role to show. Default: all. The submitter prints the command's output."""


def main(argv: Sequence[str]) -> int:
    """Print the log and return the exit code."""
    return queue_flags.run_verb(Logs, argv, "jobs logs", _print, hint="the job goes on")


def _print(flags: Logs) -> tuple[str, int]:
    queue = client.open_queue(flags.state_dir)
    queue.manage()
    job = queue.job(flags.id)
    role = Role(flags.role) if flags.role else None
    lines = queue.logs(job, role=role, tail=flags.tail, follow=flags.follow, start=flags.start)
    if flags.json_output:
        rows = [{"role": str(line.role), "source": line.source, "text": line.text} for line in lines]
        return queue_flags.dump_json(rows), 0
    for line in lines:
        print(client.format_line(line, job), flush=flags.follow)
    if not job.starts and not flags.follow:
        return f"{job.id} is {job.state}: {job.reason}", 0
    return "", 0
