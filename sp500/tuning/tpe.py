"""Guesses of Optuna's tree-structured Parzen estimator (Bergstra et al. 2011)."""

from __future__ import annotations

import optuna

from sp500.runs.trials import TrialResult
from sp500.seeding import derive
from sp500.tuning import optuna_log
from sp500.tuning.suggest import Candidates, Random, T

# Guesses that are no valid trial before TPE gives way to a random draw.
GUESSES = 20


class Tpe(Random[T]):
    """Several guesses at a time, the first of them random. One counts as bad until its result is there ("constant
    liar"), so that a pack's guesses differ. Where it guesses a trial that was tried, a random draw takes its place.
    """

    at_once = 8  # about a pack for each of a few cores

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        self._distributions = optuna_log.distributions(candidates.space)
        self._study = optuna_log.study(candidates.space, [])
        self._running: dict[str, optuna.Trial] = {}

    def tell(self, result: TrialResult) -> None:
        """Learn from a result; a failed one teaches only not to try it again."""
        known = result.id in self._seen
        running = self._running.pop(result.id, None)
        super().tell(result)
        if running is not None:
            frozen = optuna_log.to_frozen_trial(self._candidates.space, result)
            self._study.tell(running, frozen.values, state=frozen.state)
        elif not known and result.id in self._seen:
            self._study.add_trial(optuna_log.to_frozen_trial(self._candidates.space, result))

    def _next(self) -> T:
        # A sampler per guess makes guess n a function of the seed, n and the results, wherever a search was stopped.
        seed = derive(self._seed, "tpe", len(self._seen)) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)
        for _ in range(GUESSES):
            guess = self._study.ask(self._distributions)
            trial = self._candidates.build(optuna_log.overrides(self._candidates.space, guess.params))
            if trial and trial.id not in self._seen:
                self._seen.add(trial.id)
                self._running[trial.id] = guess
                return trial
            self._study.tell(guess, state=optuna.trial.TrialState.FAIL)
            if trial:
                break
        trial = super()._next()
        self._study.enqueue_trial(optuna_log.params(trial.overrides))
        self._running[trial.id] = self._study.ask(self._distributions)
        return trial
