"""Estimates a job's duration and cost before it starts: by the user's estimate, earlier jobs or earlier runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.commands import folders
from sp500.errors import ConfigError
from sp500.formatting import amount
from sp500.jobs import client
from sp500.jobs.executor import Request
from sp500.jobs.names import script_of
from sp500.jobs.queue.job import Job
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Role
from sp500.jobs.target import Target

if TYPE_CHECKING:
    from sp500.runs.cost import RateTable
    from sp500.runs.record import RunRecord

# Ended jobs of the same name that the estimate of the next one uses.
REMEMBERED = 5
SPOT = ("spot", "preemptible")

Seconds = tuple[float | None, float | None]
"""From and to; None if it is not known."""


@dataclass(frozen=True)
class PricedEstimator(client.Estimator):
    """Estimates durations and costs of jobs."""

    table: RateTable | None = None
    """Rates; None: all is free."""
    node_type: str = ""
    """Node type in the table whose rate workers have. Default: as its rule says."""
    earlier: Sequence[Job] = field(default_factory=list)
    """Jobs of this queue."""
    runs_dir: Path = Path("runs")
    """Folder of ended runs."""
    currency: str = "USD"
    """Of the costs."""
    for_agent: bool = False
    """True if an agent asks. Its own estimate then never shortens the time that its budget pays for."""

    def seconds(self, spec: JobSpec, target: Target) -> Seconds:
        """Return how long the job may last: by the user's estimate, the last jobs of its name, or runs of its script.

        For an agent the upper end is the deadline, since only that is enforced, or else the largest of the three.
        """
        own = (spec.expected, spec.expected) if spec.expected else None
        if self.for_agent:
            known = [span for span in (own, self._by_jobs(spec, target), self._by_runs(spec, target)) if span]
            low = min((low for low, _ in known if low is not None), default=None)
            high = spec.deadline or max((high for _, high in known if high is not None), default=None)
        else:
            low, high = own or self._by_jobs(spec, target) or self._by_runs(spec, target) or (None, spec.deadline)
        most = spec.deadline or math.inf
        return (None if low is None else min(low, most)), (None if high is None else min(high, most))

    def hourly(self, spec: JobSpec, target: Target, request: Request) -> float:
        """Return what an hour of the job costs.

        Raises ConfigError for a node type that the table lacks, and for an agent's job that costs money without end.
        """
        hour = self._hour(spec, target, request)
        if self.for_agent and hour and spec.deadline is None:
            raise ConfigError(
                f"deadline: this job costs {amount(hour, self.currency)} per hour, so it needs a deadline, in seconds"
            )
        return hour

    def _hour(self, spec: JobSpec, target: Target, request: Request) -> float:
        if self.table is None:
            return 0.0
        from sp500.runs import cost

        rule, types = self.table.rule, self.table.types
        if self.node_type and self.node_type not in types:
            raise ConfigError(f"--node-type {self.node_type}: the table of rates has {', '.join(types)}")
        workers = self.node_type or (rule.alone if target.is_here else rule.gpu if spec.gpus else rule.cluster)
        labels = () if target.is_here else (*spec.node_labels, *spec.tolerations)
        spot = any(word in text.lower() for text in labels for word in SPOT)
        pods = []
        for part in target.pods(spec, request):
            helps = target.makes_cluster and part.role is not Role.WORKER
            kind = rule.cluster if helps else workers
            whole_node = not (target.is_here or target.makes_cluster)  # if the job does not say, it may use all
            gib = part.each.memory / 2**30 or (types[kind].node.gib if whole_node else 0.0)
            size = {"cpus": part.each.cpus, "gpus": part.each.gpus, "gib": gib}
            pods.append(cost.Pods(**size, count=part.count, node_type=kind, spot=spot and not helps))
        return cost.amount(pods, cost.HOUR, self.table)

    def _by_jobs(self, spec: JobSpec, target: Target) -> Seconds | None:
        alike = [
            job for job in self.earlier
            if (job.name, job.kind, job.state) == (spec.name, target, JobState.SUCCEEDED)
        ]  # fmt: skip
        # A cluster made for the job is paid for from the first node on, not from the start of the command.
        spans = [(job.placed or job.started, job.ended) for job in alike[-REMEMBERED:]]
        durations = [end - begin for begin, end in spans if begin and end]
        return (min(durations), max(durations)) if durations else None

    def _by_runs(self, spec: JobSpec, target: Target) -> Seconds | None:
        """Return the range of earlier runs of the same script, plus the start of a cluster made for the job."""
        script = script_of(spec.argv)
        if script.parent.name != "experiments" or not self.runs_dir.is_dir():
            return None
        from sp500.runs import forecast

        span = forecast.estimate(self._records, script.stem, spec.workers)
        return (span[0] + target.start_seconds, span[1] + target.start_seconds) if span else None

    @cached_property
    def _records(self) -> list[RunRecord]:
        """Ended runs, read once for all jobs; without damaged ones, which the report lists."""
        from sp500.runs.store import RunStore

        return list(RunStore(self.runs_dir).scan().records)


def build_estimator(
    table: RateTable | None, node_type: str, earlier: Sequence[Job], *, currency: str, for_agent: bool = False
) -> PricedEstimator:
    """Return an estimator that reads the runs of this folder, or of SP500_RUNS_DIR.

    `currency`: used without a rate table.
    """
    return PricedEstimator(
        table, node_type, earlier, folders.default_runs(), table.currency if table else currency, for_agent
    )
