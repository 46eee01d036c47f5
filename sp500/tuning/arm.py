"""The run of a search's trials: an arm runs them, one collector hands them out and keeps what becomes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Generic

from sp500.runs.trials import Asked, Ledger, TrialResult
from sp500.tuning.stopper import Stopper, StopRule
from sp500.tuning.suggest import Suggester, T


@dataclass(frozen=True)
class Report:
    """A trial that has come to a rung, with the result that it has if it stops there; None: to its end."""

    result: TrialResult
    rung: int | None = None
    value: float = 0.0
    """What a stopper compares: lower is better."""


class Arm(ABC, Generic[T]):
    """One way to run trials. It is entered before they run, and left when all have run."""

    name: ClassVar[str]
    """Its name in the record."""
    at_once: ClassVar[int | None] = None
    """The most trials that it asks for at once. None: as many as the suggester gives."""
    cores: int = 1
    """The cores that trials ran on at once."""
    cluster: Mapping[str, float] = MappingProxyType({})
    """What the cluster has that they ran on; empty without one."""

    def __enter__(self) -> Arm[T]:
        return self

    def __exit__(self, *error: object) -> None:
        """Free the resources that run trials."""

    def split(self, trials: Sequence[T]) -> list[list[T]]:
        """Divide trials into packs, each for one process, in the order in which they should start: one by one."""
        return [[trial] for trial in trials]

    def discard(self, trial: str) -> None:
        """Free what the trial with this id, which has a result now, left on the disk."""

    @abstractmethod
    def run(self, collector: Collector[T]) -> None:
        """Run the collector's packs until it has no more, and give it each result."""

    @abstractmethod
    def build_failure(self, trial: T, reason: str) -> TrialResult:
        """Return the result of a trial that ended without one."""


class Collector(Generic[T]):
    """The trials of one search on their way from the suggester through an arm into the ledger.

    `on_result` gets each result once it is on the disk, and how many trials are running. `stop` decides at rungs. What
    the ledger holds of an earlier attempt is known: results, decisions, and trials that were running.
    """

    def __init__(
        self,
        suggester: Suggester[T],
        ledger: Ledger,
        arm: Arm[T],
        on_result: Callable[[TrialResult, int], None],
        stop: StopRule | None = None,
    ) -> None:
        self._suggester, self._ledger, self._arm, self._on_result = suggester, ledger, arm, on_result
        self._at_once = min(arm.at_once or suggester.total, suggester.at_once or suggester.total)
        self._stopper: Stopper | None = stop.make(ledger.decisions) if stop else None
        self._left = suggester.replay(ledger.asked, list(ledger.results.values()))
        self._packs: list[list[T]] = []
        self.running: set[str] = set()
        """Ids of trials that were taken and have no result yet."""

    def __getstate__(self) -> dict[str, object]:
        """Return an empty state. Tune pickles its callbacks, and a progress bar has a lock, which cannot be pickled.

        Nothing is lost: after a kill only the ledger counts.
        """
        return {}

    @property
    def is_done(self) -> bool:
        """True if the ledger holds all trials."""
        return len(self._ledger.results) >= self._suggester.total

    def take(self) -> list[T]:
        """Return the next pack; empty when all were taken. A running one may still come back."""
        if not self._packs:
            self._packs = self._arm.split(self._ask())
        pack = self._packs.pop(0) if self._packs else []
        self.running |= {trial.id for trial in pack}
        return pack

    def _ask(self) -> list[T]:
        """Return the next trials: those that ran in an earlier attempt, or new ones.

        A guess is in the ledger before it runs.
        """
        if self._left:
            left, self._left = self._left, []
            return left
        trials = self._suggester.ask(self._at_once)
        if trials and self._suggester.at_once is not None:
            ids, values = [trial.id for trial in trials], [self._suggester.guess(trial) for trial in trials]
            known = len(self._ledger.results)
            self._ledger.add_asked(Asked(count=self._at_once, ids=ids, values=values, known=known))
        return trials

    def goes_on(self, report: Report) -> bool:
        """Return whether a trial goes on after its report. The answer is in the ledger before it is given.

        A trial that does not go on has its result.
        """
        result = report.result
        if report.rung is not None:
            assert self._stopper
            if self._stopper.decide(result.id, report.rung, report.value, self._ledger.add_decision):
                return True
        self.add(result.model_copy(update={"stopped": report.rung}))
        return False

    def add(self, result: TrialResult) -> None:
        """Keep the result of a trial that was taken."""
        self.running.discard(result.id)
        self._ledger.add(result)
        self._suggester.tell(result)
        self._arm.discard(result.id)
        self._on_result(result, len(self.running))

    def lose(self, pack: Sequence[T], reason: str) -> None:
        """Queue the unfinished trials of a pack whose process died, to run again one by one.

        A trial that was alone in its pack is itself at fault, and has failed for this reason.
        """
        left = [trial for trial in pack if trial.id in self.running]
        if len(pack) > 1:
            self._packs += [[trial] for trial in left]
            return
        for trial in left:
            self.add(self._arm.build_failure(trial, reason))
