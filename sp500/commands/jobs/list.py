"""`sp500 jobs list`: the queue as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sp500.commands.jobs import queue_flags
from sp500.jobs.queue.job import Job

# Ended jobs that are shown with those that have not.
ENDED = 10


class List(queue_flags.QueueFlags):
    """Show jobs that have not ended, and the last that have."""

    all: bool = False
    """Show every job."""
    project: str | None = None
    """Show jobs of one project."""


def main(argv: Sequence[str]) -> int:
    """List, to the exit code."""
    return queue_flags.verb(List, argv, "jobs list", _listed)


def _listed(flags: List) -> tuple[str, int]:
    queue = queue_flags.queue(flags.state_dir)
    queue.manage()
    found = [job for job in queue.ledger.jobs() if flags.project in {None, job.project}]
    ended = [job for job in found if job.state.finished]
    shown = found if flags.all else [*ended[-ENDED:], *(job for job in found if not job.state.finished)]
    if flags.json_output:
        return queue_flags.dumped([queue_flags.plain(job) for job in shown]), 0
    if not shown:
        return f"no jobs in {queue.folder}", 0
    hidden = len(found) - len(shown)
    return table(shown) + (f"\n{hidden} more have ended: --all" if hidden else ""), 0


def table(jobs: Sequence[Job], width: int | None = None) -> str:
    """A line for each job; `width` in columns, None: the terminal's."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "on", "state", "ran", "project"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("reason", overflow="fold")
    now = time.time()
    for job in jobs:
        cells = job.id, job.target["on"], str(job.state), queue_flags.lasted(job, now), job.project
        # As text: a reason may have brackets, which rich takes for its markup.
        shown.add_row(*map(Text, (*cells, _shortened(job.reason))))
    # A pipe has no width; a reason is not to be folded into a column of nothing there.
    console = Console(width=width or (None if sys.stdout.isatty() else 200))
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def _shortened(reason: str) -> str:
    return reason if len(reason) <= 160 else f"{reason[:157]}..."
