"""Verbs on jobs that are queued: `sp500 jobs logs`, `wait`, `stop`, `rerun` and `delete`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sp500.commands.jobs import queue_flags
from sp500.commands.verb import verb
from sp500.errors import LimitExceeded
from sp500.jobs import client
from sp500.jobs.queue.job import Job
from sp500.jobs.state import JobState, Role


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


class Wait(queue_flags.SomeJobs):
    """Wait until jobs have ended; the exit code is the job's, of several that of the first that did not succeed."""

    timeout: float | None = None
    """Seconds after which to give up with exit code 4. Default: never."""


class Stop(queue_flags.SomeJobs):
    """Stop jobs: SIGTERM, and SIGKILL after a grace; on Kubernetes their logs are kept and their pods deleted.

    Exit code 4: a job has not ended in time.
    """

    timeout: float = 60.0
    """Seconds to wait until they have ended; they end all the same."""


class Rerun(queue_flags.OneJob):
    """Queue a job again, as it was: command, settings, folder, environment and place.

    An experiment with a --name continues its run, as by --resume.
    """


class Delete(queue_flags.SomeJobs):
    """Delete ended jobs from the queue, with their logs and what their cluster keeps of them. Their runs stay."""

    force: bool = False
    """Forget also what has not ended or cannot be reached, and say what may be left there."""


def _logs(flags: Logs) -> tuple[str, int]:
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


def _wait(flags: Wait) -> tuple[str, int]:
    jobs = client.wait(client.open_queue(flags.state_dir), flags.ids, flags.timeout)
    return _describe(jobs, flags), next(filter(None, map(_exit_code, jobs)), 0)


def _stop(flags: Stop) -> tuple[str, int]:
    jobs = client.stop(client.open_queue(flags.state_dir), flags.ids, flags.timeout)
    return _describe(jobs, flags), 0 if all(job.state.finished for job in jobs) else LimitExceeded.exit_code


def _rerun(flags: Rerun) -> tuple[str, int]:
    again = client.rerun(client.open_queue(flags.state_dir), flags.id)
    if flags.json_output:
        return queue_flags.dump_json(queue_flags.plain(again)), 0
    return f"{again.id} is queued; follow it: sp500 jobs logs {again.id} --follow", 0


def _delete(flags: Delete) -> tuple[str, int]:
    left = client.open_queue(flags.state_dir).delete(flags.ids, force=flags.force)
    if flags.json_output:
        return queue_flags.dump_json({"deleted": list(flags.ids), "left": left}), 0
    return "\n".join([f"deleted: {', '.join(flags.ids)}", *left]), 0


def _describe(jobs: Sequence[Job], flags: queue_flags.QueueFlags) -> str:
    if flags.json_output:
        return queue_flags.dump_json([queue_flags.plain(job) for job in jobs])
    return "\n".join(f"{job.id} is {job.state}: {job.reason}" for job in jobs)


def _exit_code(job: Job) -> int:
    """Return the exit code of a job's command, or one for how it ended."""
    if job.state == JobState.SUCCEEDED:
        return 0
    if job.state == JobState.STOPPED:
        return 128 + signal.SIGTERM
    return job.exit_code or 1


logs = verb("jobs logs", Logs, _logs, hint="the job keeps running")
wait = verb("jobs wait", Wait, _wait, hint="the jobs keep running; sp500 jobs stop ends them")
stop = verb("jobs stop", Stop, _stop, hint="the jobs are asked to stop all the same")
rerun = verb("jobs rerun", Rerun, _rerun)
delete = verb("jobs delete", Delete, _delete)
