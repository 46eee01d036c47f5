"""What searches and scale experiments found, as numbers. Pure functions of records, oldest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp500.runs import compare
from sp500.runs.record import RunRecord

SEARCH_KEYS = (
    "configs",
    "sequential_seconds",
    "parallel_seconds",
    "speedup",
    "efficiency",
    "same_best",
    "metric_gap",
)
Trials = list[dict[str, Any]]
"""Lines of one search's trials.jsonl."""


@dataclass(frozen=True)
class Search:
    """The newest search: its numbers, and the records of the sides that ran."""

    numbers: dict[str, Any]
    """Null where a side did not run."""
    sequential: RunRecord | None
    parallel: RunRecord | None
    cores: int | None
    """Cores of the parallel side."""
    failed: int
    """Configs that failed on the side where most did."""

    @property
    def sides(self) -> list[tuple[str, RunRecord]]:
        """What ran, under the words of the report."""
        named = (("one after another", self.sequential), ("Ray Tune", self.parallel))
        return [(name, record) for name, record in named if record is not None]


@dataclass(frozen=True)
class Scale:
    """The newest scale experiment, one row per multiplier and arm."""

    rows: list[dict[str, Any]]
    cores: int
    """Of the machine, or of the whole cluster where there is one."""
    nodes: int
    """Machines that took part."""


def search(records: Sequence[RunRecord]) -> Search:
    """The newest search. One that ran in both modes timed its sides from start to exit: its numbers count."""
    sequential, parallel, both = compare.newest_search(records)
    numbers = compare.searches(sequential, parallel)
    if both is not None and both.search is not None:
        numbers = {key: both.search.get(key) for key in SEARCH_KEYS}
    told = [record.search for record in (parallel, both) if record is not None and record.search]
    failed = [record.search.get("failed") or 0 for record in (sequential, parallel) if record and record.search]
    cores = told[0].get("cores") if told else None
    return Search(numbers, sequential, parallel, cores, max(failed, default=0))


def by_side(found: Search, trials: Mapping[str, Trials]) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """The search's trials by id, for each side that kept some."""
    sides = [(name, {trial["id"]: trial for trial in trials.get(record.name, [])}) for name, record in found.sides]
    return [(name, by_id) for name, by_id in sides if by_id]


def scale(records: Sequence[RunRecord]) -> Scale:
    """The newest scale experiment; no rows where none ran."""
    found = [record for record in records if record.scale is not None]
    if not found:
        return Scale([], 0, 0)
    newest = found[-1]
    rows = newest.scale or []
    runs = {row.get("run") for row in rows} | {newest.name}
    machines = [record.machine for record in records if record.name in runs]
    # Simulated nodes are processes of one machine.
    clusters = [{} if machine.simulated_nodes else machine.cluster for machine in machines]
    cores = [*(machine.cpus for machine in machines), *(int(cluster.get("CPU", 0)) for cluster in clusters)]
    nodes = max(int(cluster.get("nodes", 1)) for cluster in clusters)
    return Scale(rows, max(cores) if nodes > 1 else newest.machine.cpus, nodes)


def notes(records: Sequence[RunRecord]) -> list[str]:
    """What the sources say against themselves, each once: rounding, survivorship."""
    return list(dict.fromkeys(str(note) for record in records for note in record.data.get("notes") or ()))
