"""Stoppers of a search: which trials go on after a part of their training.

A trial reports at each rung, an epoch (or another count of work), and waits for the answer. The answer depends on the
values reported there before and on nothing else, so the same reports in the same order get the same answers on any arm,
and a stopper is rebuilt from the decisions in the ledger. Lower values are better.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from sp500.runs.trials import RungDecision

StopperName = Literal["asha", "median"]
# Values of others before a median says something: as many as Optuna's MedianPruner waits for.
FEWEST = 5


class Stopper(ABC):
    """Decides at the rungs `first`, `first * reduction`, `first * reduction ** 2`, ... whether a trial goes on."""

    def __init__(self, first: int, reduction: int) -> None:
        self.first, self.reduction = first, reduction
        self._known: dict[tuple[str, int], bool] = {}
        self._values: dict[int, list[float]] = {}

    def rungs(self, after: int, upto: int) -> list[int]:
        """Return the rungs after one count of work and up to another.

        A trial of n epochs reports at those after 0 and up to n - 1: its end is a result.
        """
        rungs, rung = list[int](), self.first
        while rung <= upto:
            if rung > after:
                rungs.append(rung)
            rung *= self.reduction
        return rungs

    def decide(
        self, trial_id: str, rung: int, value: float, keep: Callable[[RungDecision], None] = lambda decision: None
    ) -> bool:
        """Return whether a trial goes on after this rung. NaN never goes on.

        `keep` gets the decision before it is returned. Asked again, it answers as before and keeps nothing.
        """
        if (known := self._known.get((trial_id, rung))) is not None:
            return known
        goes_on = not math.isnan(value) and self.rule(value, self._values.get(rung, []))
        decision = RungDecision(trial=trial_id, rung=rung, value=value, goes_on=goes_on)
        keep(decision)
        self.restore([decision])
        return goes_on

    def restore(self, decisions: Iterable[RungDecision]) -> None:
        """Add decisions that were made before, such as those in a ledger."""
        for decision in decisions:
            self._known[decision.trial, decision.rung] = decision.goes_on
            if not math.isnan(decision.value):
                self._values.setdefault(decision.rung, []).append(decision.value)

    @abstractmethod
    def rule(self, value: float, others: Sequence[float]) -> bool:
        """Return whether a value is good enough, given those that others reported at this rung before."""


class Asha(Stopper):
    """Asynchronous successive halving, in its form that stops instead of pausing (Li et al. 2020, section 3.3).

    A trial goes on if it is among the best 1/reduction of all that reached its rung so far, itself included; of fewer
    than `reduction` if it is the best. No trial waits for another, so early ones go on more easily.
    """

    def rule(self, value: float, others: Sequence[float]) -> bool:
        """Return whether fewer than the number of places are better."""
        places = max((len(others) + 1) // self.reduction, 1)
        return sum(other < value for other in others) < places


class Median(Stopper):
    """Stops a trial that is worse than the median of the others at its rung (after Golovin et al. 2017, section 3.2.2).

    The first five at a rung go on.
    """

    def rule(self, value: float, others: Sequence[float]) -> bool:
        """Return whether the value is at most the median of the others."""
        return len(others) < FEWEST or value <= median(others)


STOPPERS: dict[StopperName, type[Stopper]] = {"asha": Asha, "median": Median}


@dataclass(frozen=True)
class StopRule:
    """The settings of a stopper: its name, its first rung, and the factor from one rung to the next."""

    name: StopperName
    first: int = 3
    reduction: int = 3

    def make(self, decisions: Iterable[RungDecision] = ()) -> Stopper:
        """Return a new stopper that made these decisions."""
        stopper = STOPPERS[self.name](self.first, self.reduction)
        stopper.restore(decisions)
        return stopper


def count_stopped(rungs: Iterable[int | None]) -> dict[int, int]:
    """Return how many trials ended at each rung; `rungs`: of each trial, if it did."""
    return dict(sorted(Counter(rung for rung in rungs if rung is not None).items()))
