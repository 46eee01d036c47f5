"""What to try next: all of a grid, random draws, or Optuna's TPE, which guesses from the results so far.

Every method tries a fixed number of different configs and takes results of an earlier, interrupted search, so a resumed
search tries what is left of that number and nothing twice. Draw n comes from a random stream of its own: grid and
random search try the same configs whenever they were stopped; so does TPE as far as the same results came in the same
order before the same guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.runs.trials import TrialResult
from sp500.seeding import derive, numpy_generator
from sp500.tuning.space import MOST, Space, Trial, check, distinct, grid, valid

if TYPE_CHECKING:
    import optuna

# Guesses that are no valid config before TPE gives way to a random draw.
GUESSES = 20
# Draws in a row that are invalid or were tried before: ten times the configs of the largest space that is counted.
DRAWS = 10 * MOST


@runtime_checkable
class Suggester(Protocol):
    """Says which configs to try. `total` counts those of an earlier attempt as well."""

    total: int

    def ask(self, count: int) -> list[Trial]:
        """Up to `count` trials that were neither asked for nor told before. An empty list: there are no more."""
        ...

    def tell(self, result: TrialResult) -> None:
        """Take a result, of a trial asked for or of an earlier attempt. One that is not of this space is ignored."""
        ...


def suggester(
    method: Literal["grid", "random", "tpe"], base: RunConfig, space: Space, total: int | None, seed: int
) -> Suggester:
    """The search by that method: `total` configs, or all of a grid (also where it has fewer than `total`).

    Raises ConfigError for a space that cannot be searched over this base (see `space.check`), for a range without
    `total`, and where random search or TPE would run out of different configs.
    """
    if total is not None and total < 1:
        raise ConfigError(f"search space {space.name}: {total} configs asked for; at least 1")
    if method == "grid":
        return Grid(grid(base, space), total, seed)
    check(base, space)
    total = space.size if total is None else total
    if total is None:
        raise ConfigError(f"search space {space.name}: a range has no end of configs; say how many to try")
    count = distinct(base, space)
    if count is not None and count < total:
        raise ConfigError(f"search space {space.name}: has {count} different configs, {total} asked for; ask for fewer")
    return {"random": Random, "tpe": Tpe}[method](base, space, total, seed)


class Grid:
    """The trials of a grid in order, or `total` of them picked by `seed`; a larger pick holds the smaller."""

    def __init__(self, trials: list[Trial], total: int | None, seed: int) -> None:
        self.total = min(total or len(trials), len(trials))
        picked = sorted(numpy_generator(seed, "grid").permutation(len(trials))[: self.total])
        self._left = {trials[at].id: trials[at] for at in picked}

    def ask(self, count: int) -> list[Trial]:
        """The next ones in order."""
        return [self._left.pop(name) for name in list(self._left)[:count]]

    def tell(self, result: TrialResult) -> None:
        """Leave this trial out of what is left."""
        self._left.pop(result.id, None)


class Random:
    """Independent draws from the space, without repetition."""

    def __init__(self, base: RunConfig, space: Space, total: int, seed: int) -> None:
        self.total = total
        self._base, self._space, self._seed = base, space, seed
        self._seen: set[str] = set()
        self._drawn = 0

    def ask(self, count: int) -> list[Trial]:
        """The next draws. Raises ConfigError when hardly a draw is a new valid config."""
        return [self._next() for _ in range(min(count, self.total - len(self._seen)))]

    def tell(self, result: TrialResult) -> None:
        """Count this trial and never ask for it."""
        if self._is_ours(result):
            self._seen.add(result.id)

    def _is_ours(self, result: TrialResult) -> bool:
        trial = valid(self._base, result.overrides) if self._space.contains(result.overrides) else None
        return trial is not None and trial.id == result.id

    def _next(self) -> Trial:
        for _ in range(DRAWS):
            self._drawn += 1
            trial = valid(self._base, self._space.draw(numpy_generator(self._seed, "random", self._drawn - 1)))
            if trial and trial.id not in self._seen:
                self._seen.add(trial.id)
                return trial
        raise ConfigError(
            f"search space {self._space.name}: {DRAWS:,} draws gave no new valid config after "
            f"{len(self._seen)}; widen it, or ask for fewer"
        )


class Tpe(Random):
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), several guesses at a time.

    The first guesses are random. A guess counts as bad until its result comes ("constant liar"), so that a pack's
    guesses differ. Where it guesses a config that was tried, a random draw takes its place.
    """

    def __init__(self, base: RunConfig, space: Space, total: int, seed: int) -> None:
        from sp500.tuning import optuna_log

        super().__init__(base, space, total, seed)
        self._distributions = optuna_log.distributions(space)
        self._study = optuna_log.study(space, [])
        self._running: dict[str, optuna.Trial] = {}

    def tell(self, result: TrialResult) -> None:
        """Learn from a result; a failed one teaches only not to try it again."""
        from sp500.tuning import optuna_log

        known = result.id in self._seen
        running = self._running.pop(result.id, None)
        super().tell(result)
        if running is not None:
            frozen = optuna_log.to_frozen_trial(self._space, result)
            self._study.tell(running, frozen.values, state=frozen.state)
        elif not known and result.id in self._seen:
            self._study.add_trial(optuna_log.to_frozen_trial(self._space, result))

    def _next(self) -> Trial:
        from sp500.tuning import optuna_log

        # A sampler per guess makes guess n a function of the seed, n and the results, wherever a search was stopped.
        self._study.sampler = optuna_log.sampler(derive(self._seed, "tpe", len(self._seen)))
        for _ in range(GUESSES):
            guess = self._study.ask(self._distributions)
            trial = valid(self._base, optuna_log.overrides(self._space, guess.params))
            if trial and trial.id not in self._seen:
                self._seen.add(trial.id)
                self._running[trial.id] = guess
                return trial
            self._study.tell(guess, state=optuna_log.FAIL)
            if trial:
                break
        trial = super()._next()
        self._study.enqueue_trial(optuna_log.params(trial.overrides))
        self._running[trial.id] = self._study.ask(self._distributions)
        return trial
