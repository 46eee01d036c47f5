"""Seconds since the claims of starts, by a clock that nobody sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sp500.jobs.queue.job import Job


class Stopwatch:
    """Counts for each start since it was first seen; until then the wall clock did."""

    def __init__(self, clock: Callable[[], float], ticks: Callable[[], float]) -> None:
        """`clock`: the wall clock; `ticks`: a monotonic one."""
        self._clock, self._ticks = clock, ticks
        self._seen: dict[str, tuple[float, float]] = {}

    def follow(self, active: Sequence[Job]) -> set[str]:
        """Count for these starts alone. Returns the handles that it forgot."""
        for job in active:
            if job.handle not in self._seen and job.claimed is not None:
                self._seen[job.handle] = max(self._clock() - job.claimed, 0.0), self._ticks()
        ended = self._seen.keys() - {job.handle for job in active}
        for handle in ended:
            self._seen.pop(handle, None)
        return ended

    def seconds(self, job: Job) -> float:
        """Return the seconds since the claim of the job's present start."""
        before, since = self._seen.get(job.handle, (0.0, self._ticks()))
        return before + self._ticks() - since
