"""Limits on an agent's jobs: their number, and their share of this machine, that hold if nothing has a cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sp500.agent.requests import SubmitJob
from sp500.errors import ConfigError, LimitExceeded
from sp500.formatting import some
from sp500.jobs.fields import LEAST_MEMORY
from sp500.jobs.resources import Resources
from sp500.machine.units import size_bytes

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on the jobs of one project; the flags of `sp500 mcp` set them."""

    jobs: int = 20
    """Jobs that have not ended, wherever they run."""
    memory_bytes: int | None = None
    """Memory of one job on this machine, all its workers together; None: half of what jobs may hold here."""
    disk_bytes: int = 50 * 2**30
    """Size of the folder of runs above which no job is accepted."""

    def check_jobs(self, unfinished: int) -> None:
        """Raise LimitExceeded if there are as many jobs as allowed."""
        if unfinished >= self.jobs:
            raise LimitExceeded(
                f"this project has {some(unfinished, 'unfinished job')} (--max-jobs {self.jobs}): wait, or stop one"
            )

    def check_disk(self, runs: Path) -> None:
        """Raise LimitExceeded if the folder of runs is larger than allowed."""
        if (size := folder_bytes(runs)) > self.disk_bytes:
            raise LimitExceeded(
                f"the folder of runs has {size / MIB:.0f} MiB, over --max-disk {self.disk_bytes / MIB:.0f} MiB; ask "
                "the user to delete runs"
            )

    def worker_memory(self, request: SubmitJob, workers: int, room: Resources) -> str:
        """Return the memory of each worker of a job on this machine, which its supervisor enforces.

        A job that asks for none gets all that one job may have. Raises ConfigError for more than that.
        """
        most = int(room.memory) // 2 if self.memory_bytes is None else self.memory_bytes
        each = size_bytes(request.memory) if request.memory else most // workers
        if each * workers > most or each < LEAST_MEMORY:
            raise ConfigError(
                f"memory: {some(workers, 'worker')} of {each / MIB:.0f} MiB; each needs {LEAST_MEMORY // MIB} MiB or"
                f" more, and one job may have {most / MIB:.0f} MiB on this machine (--max-memory of sp500 mcp)"
            )
        return request.memory or f"{each // MIB}MiB"


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).lstat().st_size
            except OSError:
                continue
    return total
