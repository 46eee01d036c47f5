"""Progress of a running job, from its run's folder if that is reachable, else from its log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sp500 import formatting
from sp500.commands import folders
from sp500.config import RUN_NAME
from sp500.console.entry import flag
from sp500.errors import ConfigError, SP500Error
from sp500.jobs.queue import progress_reader
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.queue import Queue
from sp500.jobs.state import JobState
from sp500.progress import RunProgress
from sp500.runs import progress as run_progress
from sp500.runs.store import Run

# The clock of a cluster may be behind that of this machine by as much.
SKEW_SECONDS = 60.0


def read(queue: Queue, job: Job, *, live: bool) -> RunProgress | None:
    """Return the progress of a job; None if it does not run, or nothing is known yet.

    Not `live`: of a job on a cluster what the queue's manager read last, which is up to 30 s old and asks no cluster.
    """
    if job.state is not JobState.RUNNING:
        return None
    here = job.kind.is_here
    if progress := _from_folder(queue, job):
        return progress
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


def _from_folder(queue: Queue, job: Job) -> RunProgress | None:
    """Return the progress in the job's run folder; None if it is of an earlier job, damaged, or not on this machine."""
    here = job.kind.is_here
    folder = run_folder(queue.ledger.document(job.id, "spec"), queue.ledger.document(job.id, "request"), here=here)
    if folder is None or job.started is None:
        return None
    try:
        timed = run_progress.read(Run(folder))
    except ConfigError:  # a damaged file; the run's own resume and the report name it
        return None
    if timed is None or timed[0].timestamp() < job.started - (0.0 if here else SKEW_SECONDS):
        return None
    return timed[1]


def run_folder(spec: Mapping[str, Any], request: Mapping[str, Any], *, here: bool) -> Path | None:
    """Return the folder that a job's command writes its run to, by its flags, settings and environment.

    `here`: whether it runs on this machine, where a relative folder counts from its working folder.
    None for a run whose name is made when it starts, and for a folder that only means something on another machine.
    """
    settings = spec["settings"]
    io = settings.get("io") or {}
    name = flag(spec["argv"], "--name", "--io.run-name") or settings.get("name") or io.get("run_name")
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        return None
    runs_dir = flag(spec["argv"], "--runs-dir", "--io.save-dir") or settings.get("runs_dir") or io.get("save_dir")
    environment = request["environment"] if here else spec["env"]
    runs = Path(runs_dir or folders.runs(environment)).expanduser()
    if here:
        return Path(request["cwd"]) / runs / name
    return runs / name if runs.is_absolute() else None
