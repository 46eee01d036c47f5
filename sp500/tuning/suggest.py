"""Suggesters of the next trials: all of a grid, random draws, or guesses from the results so far.

Every method tries a fixed number of different trials and uses results of an earlier, interrupted search, so a resumed
search tries what is left of that number and nothing twice. Draw n comes from a random stream of its own: methods that
learn nothing try the same trials whenever they were stopped. Guesses are in the ledger with the results that were
known before each, so a resumed search is where the interrupted one was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, TypeVar

from sp500.errors import ConfigError, require
from sp500.plugins.reference import parse
from sp500.runs.results import Overrides
from sp500.runs.trials import Asked, TrialResult
from sp500.seeding import numpy_generator
from sp500.tuning.axes import Space

METHODS = {
    "grid": "sp500.tuning.suggest:Grid",
    "random": "sp500.tuning.suggest:Random",
    "qmc": "sp500.tuning.qmc:Qmc",
    "tpe": "sp500.tuning.guesses:Tpe",
    "gp": "sp500.tuning.guesses:Gp",
    "cmaes": "sp500.tuning.evolution:Cmaes",
}
"""Suggesters by the name of their method; each is imported when a search uses it."""
EXTRAS = {"cmaes": ("cmaes",)}
"""Packages of the methods that need an extra of the same name."""
# Draws in a row that are invalid or were tried before: ten times the trials of the largest space that is counted.
DRAWS = 100_000
TRIALS = 60
"""Of a search that draws, unless it says how many."""


@dataclass(frozen=True)
class Trial:
    """One try. What its overrides change, only its candidates and its arm know; equal ids mean equal numbers."""

    id: str
    overrides: Overrides


T = TypeVar("T", bound=Trial)


@dataclass(frozen=True)
class Candidates(Generic[T]):
    """The trials that a search can try: those of a space that are valid."""

    space: Space
    list_grid: Callable[[], Sequence[T]]
    """Returns every trial of a grid, the last axis fastest. Raises ConfigError for a space that is none."""
    count: Callable[[], int | None]
    """Returns how many there are; None: infinitely many, or too many to count. Raises ConfigError for a wrong space."""
    build: Callable[[Overrides], T | None]
    """Returns the trial with these overrides, or None if they are not valid."""


class Suggester(ABC, Generic[T]):
    """Says which trials to try. `total` counts those of an earlier attempt as well."""

    needs_grid: ClassVar[bool] = False
    """Whether it tries listed values only, and all of them without a number of trials."""
    at_once: ClassVar[int | None] = None
    """Trials to ask for at once, so that the next ones follow from results. None: all, since results teach nothing."""

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        self.total = total
        self._candidates, self._seed = candidates, seed

    @classmethod
    def check(cls, space: Space) -> None:
        """Raise ConfigError for a space that the method cannot search."""

    @abstractmethod
    def ask(self, count: int) -> list[T]:
        """Return up to `count` trials that were neither asked for nor reported before.

        Empty: there are no more, or they follow from results of trials that are running.
        """

    @abstractmethod
    def tell(self, result: TrialResult) -> None:
        """Learn a result, of a trial asked for or of an earlier attempt. One that is not of this space is ignored."""

    def guess(self, trial: T) -> Overrides:
        """Return the values by which it asked for a trial that has no result yet."""
        return trial.overrides

    def replay(self, asked: Sequence[Asked], results: Sequence[TrialResult]) -> list[T]:
        """Go through an earlier attempt: its calls and results, in their order. Returns trials without a result."""
        done, known, left = {result.id for result in results}, 0, list[T]()
        for call in asked:
            for result in results[known : call.known]:
                self.tell(result)
            known = max(known, call.known)
            left += [trial for trial in self.ask_again(call) if trial.id not in done]
        for result in results[known:]:
            self.tell(result)
        return left

    def ask_again(self, call: Asked) -> list[T]:
        """Return the trials of a call of an earlier attempt, as if it had asked for them now."""
        again = map(self._candidates.build, call.values)
        return [trial for trial in again if trial]


def load_method(method: str) -> type[Suggester[Any]]:
    """Return the suggester of that name, or of a user's class, which is not imported before it is made.

    Raises ConfigError for a package of an extra that is not installed.
    """
    if method not in METHODS:
        from sp500.tuning.own import UserSuggester

        return type("UserSuggester", (UserSuggester,), {"reference": parse(method, "method", METHODS)})
    require(method, EXTRAS.get(method, ()))
    kind: type[Suggester[Any]] = resolve_name(METHODS[method])
    return kind


def count_trials(method: str, candidates: Candidates[T], total: int | None) -> int:
    """Return how many trials the method tries if `total` are asked for, or None: all of a grid.

    Raises ConfigError for a space that cannot be searched, for a range without `total`, and if a method that draws
    would run out of different trials.
    """
    where = f"search space {candidates.space.name}"
    if total is not None and total < 1:
        raise ConfigError(f"{where}: {total} configs asked for; at least 1")
    kind = load_method(method)
    kind.check(candidates.space)
    if kind.needs_grid:
        size = len(candidates.list_grid())
        return min(total or size, size)
    count = candidates.count()
    total = candidates.space.size if total is None else total
    if total is None:
        raise ConfigError(f"{where}: the space contains a range; set --trials")
    if count is not None and count < total:
        raise ConfigError(f"{where}: has {count} different configs, {total} asked for; ask for fewer")
    return total


class Grid(Suggester[T]):
    """The trials of a grid in order, or `total` of them picked by `seed`; a larger pick holds the smaller."""

    needs_grid = True

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        trials = candidates.list_grid()
        picked = sorted(numpy_generator(seed, "grid").permutation(len(trials))[:total])
        self._left = {trials[at].id: trials[at] for at in picked}

    def ask(self, count: int) -> list[T]:
        """Return the next trials in order."""
        return [self._left.pop(name) for name in list(self._left)[:count]]

    def tell(self, result: TrialResult) -> None:
        """Remove this trial from those that are left."""
        self._left.pop(result.id, None)


class Random(Suggester[T]):
    """Independent draws from the space, without repetition."""

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        self._seen: set[str] = set()
        self._drawn = 0

    def ask(self, count: int) -> list[T]:
        """Return the next draws. Raises ConfigError when hardly a draw is a new valid trial."""
        return [self._next() for _ in range(min(count, self.total - len(self._seen)))]

    def tell(self, result: TrialResult) -> None:
        """Count this trial and never ask for it."""
        is_ours = self._candidates.space.contains(result.overrides)
        trial = self._candidates.build(result.overrides) if is_ours else None
        if trial is not None and trial.id == result.id:
            self._seen.add(result.id)

    def _next(self) -> T:
        for _ in range(DRAWS):
            self._drawn += 1
            trial = self._candidates.build(self._draw(self._drawn - 1))
            if trial and trial.id not in self._seen:
                self._seen.add(trial.id)
                return trial
        raise ConfigError(
            f"search space {self._candidates.space.name}: {DRAWS:,} draws gave no new valid config after "
            f"{len(self._seen)}; widen it, or ask for fewer"
        )

    def _draw(self, number: int) -> Overrides:
        """Return draw `number` of this search, the same wherever it was stopped."""
        return self._candidates.space.draw(numpy_generator(self._seed, "random", number))
