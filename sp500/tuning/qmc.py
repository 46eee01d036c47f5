"""Points of a Sobol sequence, which cover a space more evenly than independent draws (Sobol 1967)."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.stats import qmc

from sp500.runs.results import Overrides
from sp500.seeding import derive
from sp500.tuning.suggest import Candidates, Random, T


class Qmc(Random[T]):
    """Scrambled (Owen 1998) with the seed. Point n is a function of seed and n. Powers of two cover the space best."""

    def __init__(self, candidates: Candidates[T], total: int, seed: int) -> None:
        super().__init__(candidates, total, seed)
        self._sequence = qmc.Sobol(len(candidates.space.axes), scramble=True, rng=derive(seed, "qmc"))

    def _draw(self, number: int) -> Overrides:
        self._sequence.reset()
        if number:
            self._sequence.fast_forward(number)
        with warnings.catch_warnings():  # of a number of points that is no power of two
            warnings.simplefilter("ignore", UserWarning)
            shares: np.ndarray = self._sequence.random(1)[0]
        axes = self._candidates.space.axes
        return {key: axis.at(float(share)) for (key, axis), share in zip(axes.items(), shares, strict=True)}
