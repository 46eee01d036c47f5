"""Progress of jobs on clusters, read from their logs now and then, and kept next to the logs.

`sp500 jobs list` shows what is kept, so that a table of many jobs asks no cluster. On Kubernetes it is an annotation of
the RayJob as well, for those who have no access to the queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from sp500.errors import SP500Error
from sp500.jobs.executor import Executor, ProgressBoard
from sp500.jobs.queue import log_archive
from sp500.jobs.queue.job import Job
from sp500.jobs.state import Role
from sp500.machine.disk import write_atomic
from sp500.progress import RunProgress, load, parse

FILE = "progress.json"
SECONDS_BETWEEN_READS = 30.0
# A cluster that does not give a log takes its time to say so, in which the manager looks after no other job there.
SECONDS_AFTER_FAULT = 300.0
# Lines of a log in which the last one of progress is looked for; other programs print as well.
LINES = 200


def read(executor: Executor, handle: str) -> RunProgress | None:
    """Return the progress at the end of a job's log; None if no line reports any. Raises SP500Error for no log."""
    lines = executor.logs(handle, role=Role.SUBMITTER, tail=LINES, follow=False)
    return parse(line.text for line in lines)


def load_kept(logs: Path, job: Job) -> RunProgress | None:
    """Return the progress kept of a job's present start, under the folder of all logs; None if none was kept."""
    try:
        return load((log_archive.folder(logs, job) / FILE).read_text())
    except (FileNotFoundError, ValueError):  # the latter: written by another version
        return None


class ProgressReader:
    """Reads the progress of running jobs, of each at most every SECONDS_BETWEEN_READS."""

    def __init__(self, logs: Path, ticks: Callable[[], float]) -> None:
        """Read below `logs`, the folder of all logs; `ticks`: a monotonic clock."""
        self._logs, self._ticks = logs, ticks
        self._next: dict[str, float] = {}
        self._faults: dict[str, str] = {}

    def look(self, executor: Executor, job: Job) -> None:
        """Keep the progress of a running job, and show it where its executor has a place for that.

        A cluster that does not answer, or forbids it, is reported once on stderr. The job itself is not affected.
        """
        if self._ticks() < self._next.get(job.handle, 0.0):
            return
        self._next[job.handle] = self._ticks() + SECONDS_BETWEEN_READS
        try:
            if not (progress := read(executor, job.handle)):
                return
            self._keep(job, progress)
        except SP500Error as error:
            self._next[job.handle] = self._ticks() + SECONDS_AFTER_FAULT
            self._report(job, error)
            return
        try:
            if isinstance(executor, ProgressBoard):
                executor.show_progress(job.handle, progress)
        except SP500Error as error:  # the log can be read: the next look tries again
            self._report(job, error)

    def _report(self, job: Job, error: SP500Error) -> None:
        if self._faults.get(job.handle) != str(error):
            print(f"{job.id}: no progress: {error}", file=sys.stderr, flush=True)
        self._faults[job.handle] = str(error)

    def drop(self, job: Job) -> None:
        """Forget how far a command was that is gone with its node, and starts again."""
        (log_archive.folder(self._logs, job) / FILE).unlink(missing_ok=True)

    def _keep(self, job: Job, progress: RunProgress) -> None:
        if progress != load_kept(self._logs, job):
            folder = log_archive.folder(self._logs, job)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(folder / FILE, progress.dump(), mode=0o600)

    def forget(self, handle: str) -> None:
        """Keep nothing in memory of a start that has ended."""
        self._next.pop(handle, None)
        self._faults.pop(handle, None)
