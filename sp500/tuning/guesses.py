"""Guesses of Optuna's samplers, which learn from the results so far."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod

import optuna

from sp500.runs.results import Overrides
from sp500.runs.trials import Asked, TrialResult
from sp500.seeding import derive
from sp500.tuning import optuna_log
from sp500.tuning.suggest import Candidates, Random, T

# Guesses that are no valid trial before a random draw takes their place.
GUESSES = 20


class Guesses(Random[T]):
    """Guesses by a sampler of Optuna's, the first of them random. Where it guesses a trial that was tried, a random
    draw takes its place.
    """

    @abstractmethod
    def make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the sampler of one guess, so that it is a function of this seed and the results."""

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        self._distributions = optuna_log.distributions(candidates.space)
        self._study = optuna_log.study(candidates.space, [])
        self._running: dict[str, optuna.Trial] = {}

    def tell(self, result: TrialResult) -> None:
        """Learn from a result; a failed one is only not tried again."""
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
        seed = derive(self._seed, type(self).__name__.lower(), len(self._seen)) % 2**32
        self._study.sampler = self.make_sampler(seed)
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

    def guess(self, trial: T) -> Overrides:
        """Return the values that Optuna knows the trial by."""
        return optuna_log.overrides(self._candidates.space, self._running[trial.id].params)

    def ask_again(self, call: Asked) -> list[T]:
        """Return these trials; the next guess knows of them as it did then. No sampler runs."""
        for name, values in zip(call.ids, call.values, strict=True):
            self._seen.add(name)
            self._study.enqueue_trial(optuna_log.params(values))
            self._running[name] = self._study.ask(self._distributions)
        return super().ask_again(call)


class Tpe(Guesses[T]):
    """The tree-structured Parzen estimator (Bergstra et al. 2011). A guess counts as bad until its result is there
    ("constant liar"), so that a pack's guesses differ.
    """

    at_once = 8  # about a pack for each of a few cores

    def make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return Optuna's TPE."""
        return optuna.samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)


class Gp(Guesses[T]):
    """A Gaussian process with expected improvement (Jones et al. 1998), one guess at a time: it does not know of trials
    that are running. For few and long trials, since each guess fits the process again.
    """

    at_once = 1

    def make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return Optuna's GPSampler."""
        # It warns of a package that would only fit the process a little faster.
        logging.getLogger("optuna._gp").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.GPSampler(seed=seed)
