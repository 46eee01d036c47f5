"""Seconds against workers: Gunther's universal scalability law, fitted to few measurements.

    seconds(N) = start + joining * (N - 1) + parallel / N + serial + sync * (N - 1)

The first two are the start, the same for any number of windows, and are separate from the law. The rest is the law of
the work (N. J. Gunther, Guerrilla Capacity Planning, 2007; "A general theory of computational scalability based on
rational functions", arXiv:0808.1431): N workers have N / (1 + sigma (N - 1) + kappa N (N - 1)) times the rate of one.
With work = parallel + serial that is the formula above, sigma = serial / work (contention: what all wait for), kappa =
sync / work (coherency: what all tell each other). Linear in its parameters, none below zero, so that least squares
has one answer.

Workers that share one machine divide the work by its cores at most: there `parallel / N` means parallel / min(N,
cores).

Few numbers of workers cannot determine all of it: one determines only the start and the work, two also either
contention or coherency. The rest is a stated default, and ranges are drawn over its stated span.

Ranges are a parametric bootstrap: the law's own seconds with log-normal errors, fitted again. The size of the errors
comes from runs that were repeated with the same settings, with the uncertainty of so few (scaled inverse chi-square).
Without repeats it is assumed to be 10%, and the range has to be called that. `python benchmarks/forecast_range.py`
measures the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

SIGMA, SIGMA_SPAN = 0.05, (0.0, 0.2)
"""Contention if it cannot be fitted, and the span in which it is assumed to be."""
KAPPA_SPAN = (0.0, 0.002)
"""The same of coherency, whose default is none."""
VARIES = 0.10
"""Standard deviation of a run's seconds, as a share of them, if no run was repeated: what docs/LOG.md shows."""
GROWS = 0.15
"""By what share at least the most workers start later than the fewest, for the start to grow: less is how runs vary."""
DRAWS, SHARE = 200, 0.9
"""Draws of the bootstrap, and the part of them that lies within a range."""


@dataclass(frozen=True)
class Variation:
    """The variation of runs with the same settings."""

    share: float
    """Standard deviation as a share of the seconds."""
    freedom: int
    """Repeats behind it (degrees of freedom); 0: assumed."""

    def factors(self, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Draw factors [draw, ...] on seconds; each draw has a standard deviation that the repeats allow."""
        scale = np.full(size[0], self.share)
        if self.freedom:
            scale *= np.sqrt(self.freedom / generator.chisquare(self.freedom, size[0]))
        return np.exp(scale.reshape(-1, *[1] * (len(size) - 1)) * generator.standard_normal(size))


def variation(repeats: Iterable[Sequence[float]]) -> Variation:
    """Return the variation pooled over groups of runs with equal settings; the assumption if all have one run."""
    groups = [np.asarray(group, float) for group in repeats]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(float(((group / group.mean() - 1) ** 2).sum()) for group in groups)
    return Variation(float(np.sqrt(squares / freedom)), freedom) if freedom else Variation(VARIES, 0)


@dataclass(frozen=True)
class Law:
    """Seconds of N workers: start + joining (N - 1) + parallel / min(N, cores) + serial + sync (N - 1)."""

    start: float
    joining: float
    parallel: float
    serial: float
    sync: float
    cores: float = math.inf
    """Cores that workers share; infinite on a cluster, whose nodes come with the workers."""

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
        """Return the seconds from start to end."""
        return float(self.start_seconds(workers) + self.work_seconds(workers))

    def start_seconds(self, workers: Any) -> Any:
        """Return seconds of the start, of one number of workers or of an array of them."""
        return self.start + self.joining * (workers - 1)

    def work_seconds(self, workers: Any) -> Any:
        """Return seconds of the work, of one number of workers or of an array of them."""
        return self.parallel / np.minimum(workers, self.cores) + self.serial + self.sync * (workers - 1)

    def scale(self, times: float) -> Law:
        """Return the law of so many times the samples: the start stays."""
        return replace(self, parallel=self.parallel * times, serial=self.serial * times, sync=self.sync * times)


@dataclass(frozen=True)
class Fit:
    """A law, others that the measurements allow as well, and what was not fitted."""

    law: Law
    draws: tuple[Law, ...]
    factors: np.ndarray
    """How many times the draw's seconds of start and of work a further run takes [draw, 2]."""
    fixed: dict[str, str]
    """What was not fitted, by its name, and in words the default that is used."""
    varies: Variation
    """How much the work of runs varies, which the range rests on."""

    def scale(self, times: float) -> Fit:
        """Return the fit of so many times the samples."""
        return replace(self, law=self.law.scale(times), draws=tuple(draw.scale(times) for draw in self.draws))

    def interval(self, workers: int) -> tuple[float, float]:
        """Return the range in which 90% of further runs are expected; the law's own seconds lie in it."""
        parts = np.array([(law.start_seconds(workers), law.work_seconds(workers)) for law in self.draws])
        low, high = np.quantile((parts * self.factors).sum(axis=1), [(1 - SHARE) / 2, (1 + SHARE) / 2])
        point = self.law.seconds(workers)
        return float(min(low, point)), float(max(high, point))


def fit(
    workers: Sequence[int],
    start: Sequence[float],
    train: Sequence[float],
    *,
    varies: tuple[Variation, Variation] | None = None,
    sigma: float = SIGMA,
    cores: float = math.inf,
    seed: int = 0,
) -> Fit:
    """Fit the law to runs: their workers, seconds of start and seconds of work, one each per run, above zero.

    `varies`: of the start and of the work; None: from runs with the same number of workers. `sigma`: contention if
    it cannot be fitted. `cores`: that all workers share, if they do.
    """
    counts, begun, took = np.asarray(workers, float), np.asarray(start, float), np.asarray(train, float)
    law, generator = _law(counts, begun, took, sigma, 0.0, cores=cores), np.random.default_rng(seed)
    begins, works = varies or [variation(part[counts == count] for count in set(counts)) for part in (begun, took)]
    starts = law.start_seconds(counts) * begins.factors((DRAWS, len(counts)), generator)
    takes = law.work_seconds(counts) * works.factors((DRAWS, len(counts)), generator)
    # Half of the draws have no coherency: with some in all of them, work that just divides would lie at the edge.
    most = KAPPA_SPAN[1]
    sigmas, kappas = generator.uniform(*SIGMA_SPAN, DRAWS), generator.uniform(-most, most, DRAWS).clip(0)
    draws = tuple(_law(counts, *drawn, cores=cores) for drawn in zip(starts, takes, sigmas, kappas, strict=True))
    factors = np.stack([variations.factors((DRAWS,), generator) for variations in (begins, works)], axis=1)
    return Fit(law, draws, factors, _list_assumptions(counts, took, sigma, cores), works)


def default(workers: int) -> float:
    """Return the speed-up if nothing was measured: 5% contention."""
    return workers / (1 + SIGMA * (workers - 1))


def _law(counts: np.ndarray, begun: np.ndarray, took: np.ndarray, sigma: float, kappa: float, *, cores: float) -> Law:
    """Fit the law by least squares of relative errors; `sigma` and `kappa` replace what the data do not determine."""
    start, distinct = _start(counts, begun), len(np.unique(counts))
    divided = 1 / np.minimum(counts, cores)
    if len(np.unique(divided)) == 1:
        of_work = divided + sigma * (1 - divided)
        # All numbers of workers above the cores: that more take longer is what they tell each other.
        work, sync = _least([of_work, counts - 1], took) if distinct > 1 else (0.0, 0.0)
        if not work:
            work = float(np.mean(took / (of_work + kappa * (counts - 1))))
            sync = work * kappa
        return Law(*start, work * (1 - sigma), work * sigma, sync, cores)
    columns = [divided, np.ones_like(counts), counts - 1]
    if distinct == 2 and not _slower(counts, took):
        parallel, serial = _least(columns[:2], took)
        return Law(*start, parallel, serial, kappa * (parallel + serial), cores)
    parallel, serial, sync = (0.0, *_least(columns[1:], took)) if distinct == 2 else _least(columns, took)
    if not parallel + serial:
        # All of it coherency: one worker would train in no time. Such measurements do not determine coherency.
        (parallel, serial), sync = _least(columns[:2], took), 0.0
    return Law(*start, parallel, serial, sync, cores)


def _start(counts: np.ndarray, begun: np.ndarray) -> tuple[float, float]:
    """Return the seconds that one worker takes to start, and what each further one adds, by the median of each number.

    None is added if that is no more than runs vary (few runs would fit a slope to noise, and many workers pay it),
    and if one worker would then start in no time.
    """
    distinct = np.unique(counts)
    middle = np.array([np.median(begun[counts == count]) for count in distinct])
    if len(distinct) == 1:
        return float(middle[0]), 0.0
    start, joining = _least([np.ones_like(distinct), distinct - 1], middle)
    grows = start > 0 and joining * (distinct[-1] - distinct[0]) > GROWS * (start + joining * (distinct[0] - 1))
    return (start, joining) if grows else (float(np.median(begun)), 0.0)


def _least(columns: Sequence[np.ndarray], took: np.ndarray) -> list[float]:
    """Return parameters, none below zero, with the least squares of relative errors."""
    from scipy.optimize import nnls  # here: the report's terminal lines import this module, and it takes 0.15 s

    parameters, _ = nnls(np.stack(columns, axis=1) / took[:, None], np.ones_like(took))
    return [float(value) for value in parameters]


def _slower(counts: np.ndarray, took: np.ndarray) -> bool:
    """Return whether more workers took longer, which no contention explains: at most everything waits."""
    return bool(took[counts == counts.max()].mean() > took[counts == counts.min()].mean())


def _list_assumptions(counts: np.ndarray, took: np.ndarray, sigma: float, cores: float) -> dict[str, str]:
    coherency = {
        "coherency": f"coherency is set to 0 (to {KAPPA_SPAN[1]:.1%} of the work per further worker in the range)"
    }
    span = f"{SIGMA_SPAN[0]:.0%} to {SIGMA_SPAN[1]:.0%} in the range"
    contention = {"contention": f"contention is set to {sigma:.0%} of the work ({span})"}
    distinct = len(np.unique(counts))
    if distinct == 1:
        return {"joining": "each further worker is assumed to start in parallel", **contention, **coherency}
    if counts.min() >= cores:
        return contention
    if distinct == 2 and _slower(counts, took):
        return {"contention": "contention is set to 100% (all work waits in line), since more workers took longer"}
    return coherency if distinct == 2 else {}
