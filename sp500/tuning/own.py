"""The suggester of a user's class: `ask(count)` gives values by setting, `tell(values, score)` gets each result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from sp500.errors import ConfigError
from sp500.plugins import contract, source
from sp500.plugins.reference import Reference
from sp500.runs.results import Overrides
from sp500.runs.trials import Asked, TrialResult
from sp500.tuning.axes import text
from sp500.tuning.suggest import Candidates, Suggester, T

# Calls in a row that give nothing new before the search ends with an error.
CALLS = 1_000


class UserSuggester(Suggester[T]):
    """Passes calls to an object of the user's class, made with the axes by setting and the seed.

    A score is the validation loss as a share of the naive one, or what `train.monitor` names; lower is better. Values
    that are no valid config, and those of a failed trial, score infinity. Values that were tried before get their score
    again.
    """

    reference: ClassVar[Reference]
    at_once = 1

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        maker = contract.load_suggester(self.reference)
        self.at_once = getattr(maker, "at_once", 1)  # type: ignore[misc] # of the user's class
        with source.blame(self.reference):
            self._user = maker(dict(candidates.space.axes), seed)
        self._values: dict[str, Overrides] = {}
        self._scores: dict[str, float] = {}

    def ask(self, count: int) -> list[T]:
        """Return what the user's object asks for. Raises ConfigError for values that the space does not have."""
        wanted, trials, idle = min(count, self.total - len(self._values)), list[T](), 0
        while len(trials) < wanted:
            with source.blame(self.reference):
                asked = list(self._user.ask(wanted - len(trials)))
            if not asked:
                break
            new = [trial for values in asked[: wanted - len(trials)] if (trial := self._take(values))]
            trials += new
            idle = 0 if new else idle + 1
            if idle == CALLS:
                raise ConfigError(f"{self._name}: {CALLS:,} calls of ask gave no new valid config; widen the space")
        return trials

    def tell(self, result: TrialResult) -> None:
        """Tell the user's object a result."""
        if result.id in self._scores or not self._candidates.space.contains(result.overrides):
            return
        self._scores[result.id] = result.score_or_infinity
        self._tell(self._values.setdefault(result.id, result.overrides), self._scores[result.id])

    def guess(self, trial: T) -> Overrides:
        """Return the values that the user's object gave."""
        return self._values[trial.id]

    def ask_again(self, call: Asked) -> list[T]:
        """Ask the user's object again. Raises ConfigError if it gives other values than in the earlier attempt."""
        trials = self.ask(call.count)
        given = [self._values[trial.id] for trial in trials]
        if [trial.id for trial in trials] != call.ids:
            raise ConfigError(
                f"{self._name} asks for {given} where the interrupted search had {call.values}: take random numbers "
                "from `seed` only, and no time or file. Choose another --name to search again"
            )
        return trials

    def _take(self, values: Overrides) -> T | None:
        """Return the trial of these values if it is valid and new."""
        space = self._candidates.space
        if not isinstance(values, Mapping) or not space.contains(values):
            raise ConfigError(f"{self._name}: ask gave {text(values)}, which search space {space.name} does not have")
        trial = self._candidates.build(dict(values))
        if trial and trial.id not in self._values:
            self._values[trial.id] = dict(values)
            return trial
        if trial is None or trial.id in self._scores:
            self._tell(values, self._scores[trial.id] if trial else math.inf)
        return None

    def _tell(self, values: Overrides, score: float) -> None:
        with source.blame(self.reference):
            self._user.tell(values, score)

    @property
    def _name(self) -> str:
        return f"{self.reference.path.name}: {self.reference.name}"
