"""Guesses of an evolution strategy, which moves a normal distribution towards the best trials (Hansen 2016)."""

from __future__ import annotations

import math

import numpy as np
from cmaes import CMA

from sp500.errors import ConfigError
from sp500.runs.results import Overrides
from sp500.runs.trials import Asked, TrialResult
from sp500.seeding import derive
from sp500.tuning.axes import Axis, Choice, Space, is_number
from sp500.tuning.suggest import Candidates, Random, T

# Generations in a row without a new trial before random draws follow: lists of few values run out of neighbours.
IDLE = 20
BELOW_ONE = math.nextafter(1.0, 0.0)


class Cmaes(Random[T]):
    """CMA-ES on the unit cube of the ranges and the sorted lists of numbers.

    A generation follows from the seed and the results of those before it, in whatever order they came, so a resumed
    search draws them again and no state is stored. A failed or invalid point is the worst.
    """

    at_once = 8

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        self._axes = {key: _sort(axis) for key, axis in candidates.space.axes.items()}
        self._varied = [key for key, axis in self._axes.items() if axis.count != 1]
        bounds = np.tile([0.0, 1.0], (len(self._varied), 1))
        mean = np.full(len(self._varied), 0.5)
        self._strategy = CMA(mean, 0.25, bounds=bounds, seed=derive(seed, "cmaes") % 2**32)
        self._generation: list[tuple[np.ndarray, T | None]] = []
        self._place, self._idle = 0, 0
        self._drawn_before: set[str] = set()
        self._scores: dict[str, float] = {}

    @classmethod
    def check(cls, space: Space) -> None:
        """Raise ConfigError for a list of anything but numbers, which has no order to move along."""
        for key, axis in space.axes.items():
            if isinstance(axis, Choice) and axis.count > 1 and not all(map(is_number, axis.values)):
                raise ConfigError(
                    f"search space {space.name}: {key} lists values that are not numbers, and method cmaes moves along "
                    "numbers; use --method tpe, or set one value"
                )
        if all(axis.count == 1 for axis in space.axes.values()):
            raise ConfigError(f"search space {space.name}: no setting has more than one value; use --method grid")

    def tell(self, result: TrialResult) -> None:
        """Learn a result."""
        super().tell(result)
        self._scores[result.id] = result.score_or_infinity

    def ask(self, count: int) -> list[T]:
        """Return the next points of this generation; none while it waits for results."""
        wanted, trials = min(count, self.total - len(self._seen)), list[T]()
        while len(trials) < wanted:
            if self._idle > IDLE:
                trials.append(self._next())
            elif self._place < len(self._generation):
                _, trial = self._generation[self._place]
                self._place += 1
                if trial and trial.id not in self._seen:
                    self._seen.add(trial.id)
                    trials.append(trial)
            elif not self._evolve():
                break
        return trials

    def ask_again(self, call: Asked) -> list[T]:
        """Return these trials, which this generation then leaves out."""
        self._seen |= set(call.ids)
        return super().ask_again(call)

    def _evolve(self) -> bool:
        """Draw the next generation if this one has all its results. Returns whether it does."""
        if any(trial and trial.id not in self._scores for _, trial in self._generation):
            return False
        if self._generation:
            self._strategy.tell(
                [(point, self._scores[trial.id] if trial else math.inf) for point, trial in self._generation]
            )
        points = [self._strategy.ask() for _ in range(self._strategy.population_size)]
        self._generation = [(point, self._candidates.build(self._values(point))) for point in points]
        drawn = {trial.id for _, trial in self._generation if trial}
        self._idle = 0 if drawn - self._drawn_before else self._idle + 1
        self._drawn_before |= drawn
        self._place = 0
        return True

    def _values(self, point: np.ndarray) -> Overrides:
        """Return the values at a point of the cube, in the order of the space."""
        shares = dict(zip(self._varied, point.tolist(), strict=True))
        return {key: axis.at(min(shares.get(key, 0.0), BELOW_ONE)) for key, axis in self._axes.items()}


def _sort(axis: Axis) -> Axis:
    """Return a list of numbers from the smallest to the largest, any other axis as it is."""
    return Choice(tuple(sorted(axis.values))) if isinstance(axis, Choice) and axis.count > 1 else axis
