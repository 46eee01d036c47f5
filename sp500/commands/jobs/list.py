"""`sp500 jobs list`: the queue as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sp500.commands.jobs import job_progress, queue_flags
from sp500.commands.verb import verb
from sp500.jobs import client
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.queue import Queue
from sp500.progress import RunProgress

# Ended jobs that are shown with those that have not.
ENDED = 10


class List(queue_flags.QueueFlags):
    """List jobs that have not ended, and the last that have."""

    all: bool = False
    """Show every job."""
    project: str | None = None
    """Show jobs of one project."""


def _list(flags: List) -> tuple[str, int]:
    queue = client.open_queue(flags.state_dir)
    queue.manage()
    jobs = [job for job in queue.ledger.jobs() if flags.project in {None, job.project}]
    ended = [job for job in jobs if job.state.finished]
    shown = jobs if flags.all else [*ended[-ENDED:], *(job for job in jobs if not job.state.finished)]
    progress = progress_of(queue, shown)
    if flags.json_output:
        return queue_flags.dump_json([queue_flags.plain(job, progress=progress[job.id]) for job in shown]), 0
    if not shown:
        return f"no jobs in {queue.folder}", 0
    hidden = len(jobs) - len(shown)
    return table(shown, progress) + (f"\n{hidden} more have ended: --all" if hidden else ""), 0


def progress_of(queue: Queue, jobs: Sequence[Job]) -> dict[str, RunProgress | None]:
    """Return the progress of each job by its id, without asking a cluster."""
    return {job.id: job_progress.read(queue, job, live=False) for job in jobs}


def table(jobs: Sequence[Job], progress: Mapping[str, RunProgress | None], width: int | None = None) -> str:
    """Return a line for each job, with a column for progress if any is known.

    `width`: columns; None: the terminal's.
    """
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "on", "state", "ran", "project"):
        shown.add_column(column, no_wrap=True)
    any_progress = any(progress.get(job.id) for job in jobs)
    for column in ("progress", "reason") if any_progress else ("reason",):
        shown.add_column(column, overflow="fold")
    now = time.time()
    for job in jobs:
        cells = [job.id, job.kind.name, str(job.state), queue_flags.format_run_time(job, now), job.project]
        if any_progress:
            cells.append(job_progress.words(progress.get(job.id), now))
        # As text: a reason may have brackets, which rich reads as markup.
        shown.add_row(*map(Text, (*cells, _shorten(job.reason))))
    # A pipe has no width; a reason is not to be folded into a column of nothing there.
    console = Console(width=width or (None if sys.stdout.isatty() else 200))
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def _shorten(reason: str) -> str:
    return reason if len(reason) <= 160 else f"{reason[:157]}..."


main = verb("jobs list", List, _list)
