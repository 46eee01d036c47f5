"""Progress of a running job, from its log."""

from __future__ import annotations

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
    """Return progress as short text: 'epoch 7/25, 1.2k/s, best 0.981, 3.0 min left'; a dash if it is unknown."""
    if progress is None:
        return formatting.NOTHING
    left = progress.eta_seconds(now)
    speed, best = progress.samples_per_second, progress.best_loss
    parts = [
        progress.counted,
        *([] if speed is None else [f"{_short(speed)}/s"]),
        *([] if best is None else [f"best {best:.4g}"]),
        *([] if left is None else [f"{_time(left)} left"]),
    ]
    return ", ".join(parts)


def plain(progress: RunProgress | None, now: float) -> dict[str, object] | None:
    """Return progress for JSON; None if it is unknown."""
    if progress is None:
        return None
    return {
        "kind": progress.kind,
        "done": progress.done,
        "total": progress.total,
        "at_most": progress.at_most,
        "samples_per_second": progress.samples_per_second,
        "best_loss": progress.best_loss,
        "eta_seconds": progress.eta_seconds(now),
        "updated": progress.updated,
    }


def _short(rate: float) -> str:
    """Return a number in three digits at most: 0.52, 950, 1.2k, 474k, 1.1M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if rate >= limit * 0.9995:
            return f"{rate / limit:.{1 if rate < 100 * limit else 0}f}{unit}"
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _time(seconds: float) -> str:
    """Return a time in whole seconds: an estimate has no tenths."""
    return f"{seconds:.0f} s" if seconds < 2 * formatting.MINUTE else formatting.seconds(seconds)
