"""Seconds against workers: Gunther's universal scalability law, fitted to few measurements.

    seconds(N) = start + joining * (N - 1) + parallel / N + serial + sync * (N - 1)

The first two are the start, the same for any number of windows, and stand apart from the law. The rest is the law of
the work (N. J. Gunther, Guerrilla Capacity Planning, 2007; "A general theory of computational scalability based on
rational functions", arXiv:0808.1431): N workers have N / (1 + sigma (N - 1) + kappa N (N - 1)) times the rate of one.
With work = parallel + serial that is what stands above, sigma = serial / work (contention: what all wait for), kappa =
sync / work (coherency: what each tells each other). Linear in its parameters, none below zero, so that least squares
has one answer.

Few numbers of workers cannot tell all of it: one tells only the start and the work, two besides either contention or
coherency. What they do not tell is a stated default, and ranges are drawn over its stated span. Ranges are a bootstrap
of relative errors, each with 5 % more or less, since two or three runs cannot show how much runs vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from sp500.bootstrap import stationary_bootstrap

SIGMA, SIGMA_SPAN = 0.05, (0.0, 0.2)
"""Contention where it cannot be fitted, and the span in which it is taken to lie."""
KAPPA_SPAN = (0.0, 0.002)
"""The same of coherency, whose default is none."""
VARIES = 0.05
"""By how much a run is taken to vary at least, as a share of its seconds."""
GROWS = 0.15
"""By what share at least the most workers start later than the fewest, for the start to grow: less is how runs vary."""
RESAMPLES, SHARE = 1000, 0.9
"""Draws of the bootstrap, and the part of them that lies within a range."""


@dataclass(frozen=True)
class Law:
    """Seconds of N workers: start + joining (N - 1) + parallel / N + serial + sync (N - 1)."""

    start: float
    joining: float
    parallel: float
    serial: float
    sync: float

    @property
    def sigma(self) -> float:
        """Contention, as a share of the work."""
        return self.serial / self.work

    @property
    def kappa(self) -> float:
        """Coherency, as a share of the work for each further worker."""
        return self.sync / self.work

    @property
    def work(self) -> float:
        """Seconds that one worker trains."""
        return self.parallel + self.serial

    def seconds(self, workers: int) -> float:
        """From start to end."""
        return float(self.begun(workers) + self.trained(workers))

    def begun(self, workers: Any) -> Any:
        """Seconds of the start, of one number of workers or of an array of them."""
        return self.start + self.joining * (workers - 1)

    def trained(self, workers: Any) -> Any:
        """Seconds of the work, likewise."""
        return self.parallel / workers + self.serial + self.sync * (workers - 1)

    def scaled(self, times: float) -> Law:
        """The law of so many times the samples: the start stays."""
        return replace(self, parallel=self.parallel * times, serial=self.serial * times, sync=self.sync * times)


@dataclass(frozen=True)
class Fit:
    """A law, others that the measurements allow as well, and what was not fitted."""

    law: Law
    draws: tuple[Law, ...]
    missed: tuple[float, ...]
    """One per draw: how many times the law's seconds a further run takes."""
    fixed: dict[str, str]
    """What was not fitted, by its name, and in words at which default it stands."""

    def scaled(self, times: float) -> Fit:
        """The fit of so many times the samples."""
        return replace(self, law=self.law.scaled(times), draws=tuple(one.scaled(times) for one in self.draws))

    def interval(self, workers: int) -> tuple[float, float]:
        """Range in which 90 % of further runs are expected; the law's own seconds lie in it."""
        found = [law.seconds(workers) * times for law, times in zip(self.draws, self.missed, strict=True)]
        low, high = np.quantile(found, [(1 - SHARE) / 2, (1 + SHARE) / 2])
        point = self.law.seconds(workers)
        return float(min(low, point)), float(max(high, point))


def fit(workers: Sequence[int], start: Sequence[float], train: Sequence[float], *, seed: int = 0) -> Fit:
    """The law of runs: their workers, seconds of start and seconds of work, one each per run, above zero."""
    counts, begun, took = np.asarray(workers, float), np.asarray(start, float), np.asarray(train, float)
    law = _law(counts, begun, took, SIGMA, 0.0)
    missed = np.concatenate([begun / law.begun(counts), took / law.trained(counts)])
    generator = np.random.default_rng(seed)
    # Blocks of one: runs follow no order.
    rows, ahead = (missed[stationary_bootstrap(len(missed), RESAMPLES, 1.0, generator)] for _ in range(2))
    rows, ahead = (found * generator.choice([1 - VARIES, 1 + VARIES], size=found.shape) for found in (rows, ahead))
    sigmas, kappas = (generator.uniform(*span, RESAMPLES) for span in (SIGMA_SPAN, KAPPA_SPAN))
    half = len(counts)
    draws = [
        _law(counts, law.begun(counts) * row[:half], law.trained(counts) * row[half:], sigma, kappa)
        for row, sigma, kappa in zip(rows, sigmas, kappas, strict=True)
    ]
    return Fit(law, tuple(draws), tuple(map(float, ahead[:, 0])), _fixed(counts, took))


def default(workers: int) -> float:
    """Speed-up where nothing was measured: 5 % contention."""
    return workers / (1 + SIGMA * (workers - 1))


def _law(counts: np.ndarray, begun: np.ndarray, took: np.ndarray, sigma: float, kappa: float) -> Law:
    """Least squares of relative errors; `sigma` and `kappa` count where the measurements do not tell them."""
    start, distinct = _start(counts, begun), len(np.unique(counts))
    if distinct == 1:
        of_work = 1 / counts + sigma * (1 - 1 / counts) + kappa * (counts - 1)
        work = float(np.mean(took / of_work))
        return Law(*start, work * (1 - sigma), work * sigma, work * kappa)
    columns = [1 / counts, np.ones_like(counts), counts - 1]
    if distinct == 2 and not _slower(counts, took):
        parallel, serial = _least(columns[:2], took)
        return Law(*start, parallel, serial, kappa * (parallel + serial))
    if distinct == 2:
        serial, sync = _least(columns[1:], took)
        return Law(*start, 0.0, serial, sync)
    return Law(*start, *_least(columns, took))


def _start(counts: np.ndarray, begun: np.ndarray) -> tuple[float, float]:
    """Seconds that one worker takes to start, and what each further one adds, by the median of each number.

    None is added where that is no more than runs vary: few runs would tell a slope of noise, and many workers pay it.
    """
    distinct = np.unique(counts)
    middle = np.array([np.median(begun[counts == count]) for count in distinct])
    if len(distinct) == 1:
        return float(middle[0]), 0.0
    start, joining = _least([np.ones_like(distinct), distinct - 1], middle)
    grows = joining * (distinct[-1] - distinct[0]) > GROWS * (start + joining * (distinct[0] - 1))
    return (start, joining) if grows else (float(np.median(begun)), 0.0)


def _least(columns: Sequence[np.ndarray], took: np.ndarray) -> list[float]:
    """Parameters, none below zero, with the least squares of relative errors."""
    found, _ = nnls(np.stack(columns, axis=1) / took[:, None], np.ones_like(took))
    return [float(value) for value in found]


def _slower(counts: np.ndarray, took: np.ndarray) -> bool:
    """Whether more workers took longer, which no contention explains: at most everything waits, and no longer."""
    return bool(took[counts == counts.max()].mean() > took[counts == counts.min()].mean())


def _fixed(counts: np.ndarray, took: np.ndarray) -> dict[str, str]:
    coherency = f"coherency is taken as 0 (to {KAPPA_SPAN[1]:.1%} of the work per further worker in the range)"
    distinct = len(np.unique(counts))
    if distinct == 1:
        span = f"{SIGMA_SPAN[0]:.0%} to {SIGMA_SPAN[1]:.0%} in the range"
        return {
            "joining": "each further worker is taken to start beside the others",
            "contention": f"contention is taken as {SIGMA:.0%} of the work ({span})",
            "coherency": coherency,
        }
    if distinct == 2 and _slower(counts, took):
        return {"contention": "contention is taken as 100% (all work waits in line), since more workers took longer"}
    return {"coherency": coherency} if distinct == 2 else {}
