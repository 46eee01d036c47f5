"""`sp500 jobs stop`: ask jobs to end, and see them end."""

from __future__ import annotations

from collections.abc import Sequence

from sp500.commands.jobs import queue_flags
from sp500.errors import LimitExceeded
from sp500.jobs import client


class Stop(queue_flags.SomeJobs):
    """Stop jobs: SIGTERM, and SIGKILL after a grace; on Kubernetes their logs are kept and their pods deleted."""

    timeout: float = 60.0
    """Seconds to wait until they have ended; they end all the same."""


def main(argv: Sequence[str]) -> int:
    """Stop the jobs and return the exit code: 4 when a job has not ended in time."""
    return queue_flags.run_verb(Stop, argv, "jobs stop", _stop, hint="the jobs are asked to stop all the same")


def _stop(flags: Stop) -> tuple[str, int]:
    queue = client.open_queue(flags.state_dir)
    jobs = client.stop(queue, flags.ids, flags.timeout)
    code = 0 if all(job.state.finished for job in jobs) else LimitExceeded.exit_code
    if flags.json_output:
        return queue_flags.dump_json([queue_flags.plain(job) for job in jobs]), code
    return "\n".join(f"{job.id} is {job.state}: {job.reason}" for job in jobs), code
