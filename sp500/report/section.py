"""A section of the report: what it collects from the runs, and what it says of it.

The page is a loop over `page.SECTIONS`. A new section is a class in a file of its own, and a line there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from sp500.errors import ConfigError
from sp500.report import costs
from sp500.report.costs import Costs
from sp500.report.lean import Stored, Trimmer
from sp500.runs import store
from sp500.runs.cost import RateTable
from sp500.runs.details import Importance
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.store import RunStore
from sp500.runs.trials import Ledger, TrialResult


@dataclass(frozen=True)
class Runs:
    """All that a report is made of; epochs and trials go by their run's name."""

    records: Sequence[RunRecord]
    """Oldest first; without details, if `stored` has them."""
    epochs: Mapping[str, Sequence[EpochMetrics]]
    trials: Mapping[str, Sequence[TrialResult]]
    rates: RateTable | None = None
    unended: Sequence[RunRecord] = ()
    """Runs that left no record, and only cost something."""
    damaged: Sequence[str] = ()
    """Problem of each run that cannot be read."""
    importance: Mapping[str, Importance] = field(default_factory=dict)
    """What `sp500 importance` found, by the run's name."""
    chosen: bool = False
    """True if the user named the runs: then all searches and walk-forwards are in detail, and settings compared."""
    stored: Callable[[str], RunRecord | None] = lambda _name: None
    """Reads a record with its details."""

    def whole(self, record: RunRecord) -> RunRecord:
        """Return a record with its details."""
        return self.stored(record.name) or record

    @cached_property
    def costs(self) -> Costs:
        """The costs of the runs."""
        return costs.of(self.records, self.unended, self.rates)


def read_runs(
    folder: RunStore, rates: RateTable | None = None, *, names: Collection[str] = (), project: str = ""
) -> Runs:
    """Return the runs of a folder, or those of `names` and of a `project`.

    One that cannot be read is listed with its reason, and ends nothing. Raises ConfigError for a name that has no run,
    and for a project without runs.
    """
    scanned = _choose(folder.scan(Trimmer()), names, project)
    damaged, records = list(scanned.damaged), list[RunRecord]()
    curves, searches, importance = set[str](), set[str](), dict[str, Importance]()

    def read_trials(name: str) -> list[TrialResult]:
        return list(Ledger(folder.root / name).results.values())

    for record in scanned.records:
        try:  # reads every file, to report all that are damaged
            if len(folder.epochs(record.name)) > 1:
                curves.add(record.name)
            if record.search is not None and read_trials(record.name):
                searches.add(record.name)
            inputs = folder.run(record.name).importance()
        except ConfigError as error:
            damaged.append(str(error))
            continue
        importance |= {record.name: inputs} if inputs else {}
        records.append(record)
    epochs, trials = Stored(curves, folder.epochs), Stored(searches, read_trials)
    # The parts of one record are asked for one after another.
    read = lru_cache(1)(folder.record)
    return Runs(records, epochs, trials, rates, scanned.unended, damaged, importance, bool(names or project), read)


def _choose(scanned: store.Runs, names: Collection[str], project: str) -> store.Runs:
    """Return the runs of these names with the arms of their searches, and of this project."""
    if not names and not project:
        return scanned
    wanted = set(names)
    for record in scanned.records:
        if record.name in names and record.search:
            wanted.update(record.search.get("runs", {}).values())

    def fits(record: RunRecord) -> bool:
        """Return whether the user asked for this run."""
        belongs = (record.config.get("io") or {}).get("project", "") == project
        return (not names or record.name in wanted) and (not project or belongs)

    records, unended = (tuple(filter(fits, part)) for part in (scanned.records, scanned.unended))
    there = {record.name for record in (*records, *unended)}
    if missing := sorted(set(names) - there):
        raise ConfigError(f"--runs: no run {', '.join(missing)} in this folder{' and project' if project else ''}")
    if not there:
        raise ConfigError(f"--project {project}: no run of this project; jobs submit --project or --io.project sets it")
    return store.Runs(records, unended, scanned.damaged if not names else ())


@dataclass(frozen=True)
class Folded:
    """Parts under a title of their own, which the reader opens."""

    title: str
    parts: Sequence[Any]


class Section(ABC):
    """One part of the page. `collect` is called once, and its result given to the other methods."""

    name: str
    """Its key in verdicts, and its heading unless there is a title."""
    title: str = ""
    appendix: bool = False
    """Whether it is for those who check: data, hashes, speeds."""

    @abstractmethod
    def collect(self, runs: Runs) -> Any:
        """Return what it shows of these runs."""

    def lead(self, found: Any, runs: Runs) -> str:
        """Return the one sentence that is read first."""
        return next(iter(self.sentences(found, runs)), "")

    def sentences(self, found: Any, runs: Runs) -> list[str]:
        """Return its verdicts; none for a section that only lists."""
        return []

    def parts(self, found: Any, runs: Runs) -> Sequence[Any]:
        """Return tables, figures, and strings for remarks, in the order in which they are read.

        The first figure is next to the lead; all else is opened by the reader.
        """
        return ()

    def numbers(self, found: Any, runs: Runs) -> Mapping[str, Any]:
        """Return what report.json holds of it."""
        return {}
