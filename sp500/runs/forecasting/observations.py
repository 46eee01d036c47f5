"""Which runs a forecast is made of: those of one kind with the most numbers of workers, and why not the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from pydantic import ValidationError

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.runs import compare, cost
from sp500.runs.record import RunRecord
from sp500.runs.results import LeftOut
from sp500.runs.scaling import fixed_seconds

APART = {"train": {"epochs": 1, "max_steps": 0, "early_stop_patience": 0}, "data": {"multiplier": 1}}
"""Settings in which runs of one law may differ: they decide on how many windows a run trains, and nothing else."""


@dataclass(frozen=True)
class Observation:
    """One run as the law sees it."""

    record: RunRecord
    workers: int
    start: float
    """Seconds that do not grow with the windows, without writing shards, which the next run does not pay."""
    work: float
    """Seconds that do: all windows at the warm rate; where a run has none, all after the start; of a search what
    its trials took together, over its workers."""

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """What runs of one fit have in common: settings and data, device, kind of machine, whether the rate is warm."""
        record = self.record
        settings = str(record.search["key"]) if record.search else _law_settings(record)
        return settings, record.device, place(record), _is_warm(record)

    @property
    def samples(self) -> int:
        """Windows trained on."""
        return self.record.samples

    @property
    def seconds(self) -> float:
        """From start to end, without writing shards."""
        return self.start + self.work

    @property
    def finished(self) -> datetime:
        """When it ended."""
        return self.record.finished


def choose_runs(records: Sequence[RunRecord], experiment: str) -> tuple[list[Observation], list[LeftOut]]:
    """The runs of one key with the most numbers of workers, the newest such; and why each other run is left out."""
    groups: dict[tuple[str, str, str, bool], list[Observation]] = {}
    left_out: list[LeftOut] = []
    timed = compare.timings(records)
    for record in records:
        if record.experiment != experiment or record.arm in cost.PARTS:
            continue
        observation = observe(record, timed.get(record.name, {}))
        if isinstance(observation, str):
            left_out.append({"run": record.name, "why": observation})
        else:
            groups.setdefault(observation.key, []).append(observation)
    if not groups:
        return [], left_out
    best = max(groups.values(), key=lambda group: (len(counts(group)), max(other.finished for other in group)))
    others = [other for group in groups.values() if group is not best for other in group]
    left_out += [{"run": other.record.name, "why": _difference(other, best[0])} for other in others]
    return best, left_out


def observe(record: RunRecord, timed: Mapping[str, Any]) -> Observation | str:
    """A run with workers that ended well at one go, or why it is none.

    Of a search the workers are the cores that its trials ran on side by side; its start and its work are those of the
    report's break-even, by the outer clock `timed` where there was one.
    """
    search, seconds = record.search, record.seconds
    if record.status != "ok":
        return f"ended as {record.status}"
    if seconds.earlier or (search and search["resumed"]):
        return "was interrupted"
    workers = int(search["cores"]) if search and record.arm == "ray" else record.num_workers
    if not workers:
        return "has no workers (one process)"
    shards = record.data.get("shards")
    writing = shards["writing_seconds"] if shards else 0.0
    if _is_warm(record) and record.warm_samples_per_second:
        rate = record.warm_samples_per_second
        start, work = fixed_seconds(seconds.total, writing, record.samples, rate), record.samples / rate
    elif search:
        _, begun, together = compare.split_seconds(record, timed)
        start, work = begun or 0.0, (together or 0.0) / workers
    else:
        work = seconds.total - seconds.setup
        start = seconds.total - work - writing
    if work <= 0 or start <= 0 or not record.samples:
        return "does not tell its seconds of start and training"
    return Observation(record, workers, start, work)


def pace(used: Sequence[Observation]) -> list[float]:
    """Seconds of work per window of each run, as they are with the most windows.

    Short epochs have a lower rate, since each waits for its first batch. So speeds are compared among runs of one size,
    that with the most numbers of workers; runs of the largest size tell by how much these take more or less there.
    """
    sizes: dict[str, list[Observation]] = {}
    for run in used:
        sizes.setdefault(run.record.fingerprint, []).append(run)
    alike = max(sizes.values(), key=lambda group: (len(counts(group)), most(group)))
    at, there = _per_window(alike), _per_window(max(sizes.values(), key=most))
    both = [there[workers] / at[workers] for workers in at if workers in there]
    times = median(both) if both else 1.0
    own = [run.work / run.samples for run in used]
    return [
        mine * times if run in alike else at[run.workers] * times if run.workers in at else mine
        for run, mine in zip(used, own, strict=True)
    ]


def most(used: Sequence[Observation]) -> int:
    """Windows of the run with the most."""
    return max(run.samples for run in used)


def place(record: RunRecord) -> str:
    """The kind of machine that a run ran on, in words."""
    if cost.is_rented(record):
        cpus = record.machine.cluster.get("worker_CPU")
        return f"a cluster's nodes of {cpus:g} CPUs" if cpus else "a cluster"
    cores = f"the {record.machine.cpus} cores of one machine"
    return f"simulated nodes on {cores}" if record.machine.simulated_nodes else cores


def shared_cores(used: Sequence[Observation]) -> float:
    """Cores that the workers of all these runs shared; infinite on a cluster, where nodes come with the workers."""
    newest = used[-1].record
    return math.inf if cost.is_rented(newest) else newest.machine.cpus


def counts(used: Sequence[Observation]) -> list[int]:
    """Numbers of workers that were measured, fewest first."""
    return sorted({run.workers for run in used})


def _difference(other: Observation, best: Observation) -> str:
    names = ("other settings or data", "another device", "another kind of machine", "a rate measured otherwise")
    return ", ".join(name for name, mine, theirs in zip(names, other.key, best.key, strict=True) if mine != theirs)


def _per_window(group: Sequence[Observation]) -> dict[int, float]:
    """Seconds of work per window, the median of each number of workers."""
    every = {workers: [run for run in group if run.workers == workers] for workers in counts(group)}
    return {workers: median(run.work / run.samples for run in ones) for workers, ones in every.items()}


def _is_warm(record: RunRecord) -> bool:
    return bool(record.warm_samples_per_second) and not record.search


def _law_settings(record: RunRecord) -> str:
    """Hash of the settings without those that set APART; of settings that this version does not know, with them."""
    try:
        config = RunConfig.model_validate(record.config)
    except (ValidationError, ConfigError):  # also a task or model of the user's, whose file is not here
        return record.fingerprint
    parts = {name: getattr(config, name).model_copy(update=values) for name, values in APART.items()}
    return config.model_copy(update=parts).fingerprint
