"""What searches found, as numbers, and what the sources say. Pure functions of records, oldest first."""

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


def notes(records: Sequence[RunRecord]) -> list[str]:
    """What the sources say against themselves, each once: rounding, survivorship."""
    return list(dict.fromkeys(str(note) for record in records for note in record.data.get("notes") or ()))
