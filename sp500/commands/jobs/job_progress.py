"""Progress of a running job, from its log."""

from __future__ import annotations

from dataclasses import asdict, replace

from sp500 import formatting
from sp500.errors import SP500Error
from sp500.jobs.queue import progress_reader
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.queue import Queue
from sp500.jobs.state import JobState
from sp500.progress import RunProgress


def read(queue: Queue, job: Job, *, live: bool) -> RunProgress | None:
    """Return the progress of a job; None if it does not run, or nothing is known yet.

    Not `live`: of a job on a cluster what the queue's manager read last, which is up to 30 s old and asks no cluster.
    """
    if job.state is not JobState.RUNNING:
        return None
    here = job.kind.is_here
    try:
        if (here or live) and (progress := progress_reader.read(queue.executor(job.target), job.handle)):
            return progress
    except SP500Error:  # no log to read: `status` says so below its own title
        pass
    return None if here else progress_reader.load_kept(queue.logs_folder, job)


def words(progress: RunProgress | None, now: float) -> str:
    """Return progress as the log has it, with the time that is left now; a dash if it is unknown."""
    return replace(progress, updated=now).describe("") if progress else formatting.NOTHING


def plain(progress: RunProgress | None, now: float) -> dict[str, object] | None:
    """Return progress for JSON, with the time that is left instead of the end; None if it is unknown."""
    if progress is None:
        return None
    fields = asdict(progress)
    del fields["ends"]
    return {**fields, "eta_seconds": progress.eta_seconds(now)}
