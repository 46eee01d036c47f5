"""`sp500 jobs wait`: until jobs have ended, with their exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from sp500.commands.jobs import queue_flags
from sp500.jobs import client
from sp500.jobs.queue.job import Job
from sp500.jobs.state import JobState


class Wait(queue_flags.SomeJobs):
    """Wait until jobs have ended; the exit code is the job's, of several that of the first that did not succeed."""

    timeout: float | None = None
    """Seconds after which to give up with exit code 4. Default: never."""


def main(argv: Sequence[str]) -> int:
    """Wait and return the exit code."""
    return queue_flags.run_verb(Wait, argv, "jobs wait", _wait, hint="the jobs go on; sp500 jobs stop ends them")


def _wait(flags: Wait) -> tuple[str, int]:
    jobs = client.wait(client.open_queue(flags.state_dir), flags.ids, flags.timeout)
    code = next(filter(None, map(exit_code, jobs)), 0)
    if flags.json_output:
        return queue_flags.dump_json([queue_flags.plain(job) for job in jobs]), code
    return "\n".join(f"{job.id} is {job.state}: {job.reason}" for job in jobs), code


def exit_code(job: Job) -> int:
    """The exit code of a job's command, or one for how it ended."""
    if job.state == JobState.SUCCEEDED:
        return 0
    if job.state == JobState.STOPPED:
        return 128 + signal.SIGTERM
    return job.exit_code or 1
