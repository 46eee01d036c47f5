"""Resources that a job uses while it runs, and that a machine or a namespace has."""

from __future__ import annotations

from dataclasses import dataclass

from sp500.jobs.spec import JobSpec
from sp500.machine.units import size_bytes


@dataclass(frozen=True)
class Resources:
    """CPUs, GPUs and memory (bytes); infinity if there is no limit."""

    cpus: float = 0
    gpus: float = 0
    memory: float = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpus - other.cpus, self.gpus - other.gpus, self.memory - other.memory)

    def holds(self, other: Resources) -> bool:
        """Return whether `other` fits in."""
        return self.cpus >= other.cpus and self.gpus >= other.gpus and self.memory >= other.memory

    def short_of(self, demand: Resources) -> str:
        """Return what of `demand` is not free here, in words: `4 CPUs (1 free)`."""
        lacking = [
            f"{_count(need, unit)} ({_count(max(have, 0), '')} free)"
            for have, need, unit in (
                (self.cpus, demand.cpus, " CPU"),
                (self.gpus, demand.gpus, " GPU"),
                (self.memory / 2**30, demand.memory / 2**30, " GiB"),
            )
            if have < need
        ]
        return " and ".join(lacking)

    def text(self) -> str:
        """Return the resources as people write them: `4 CPUs, 1 GPU, 8 GiB`."""
        parts = [_count(self.cpus, " CPU")]
        parts += [_count(self.gpus, " GPU")] if self.gpus else []
        parts += [_count(self.memory / 2**30, " GiB")] if self.memory else []
        return ", ".join(parts)


UNCOUNTED = Resources(float("inf"), float("inf"), float("inf"))


def of_spec(spec: JobSpec) -> Resources:
    """Return what a job without its own pods uses: that of its workers, one CPU each unless it says more."""
    memory = size_bytes(spec.memory) if spec.memory else 0
    return Resources(spec.workers * (spec.cpus or 1), spec.workers * spec.gpus, spec.workers * memory)


def _count(number: float, unit: str) -> str:
    plural = "s" if unit in {" CPU", " GPU"} and number != 1 else ""
    return f"{number:.3g}{unit}{plural}" if number < 1000 else f"{number:.0f}{unit}{plural}"
