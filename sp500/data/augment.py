"""Noisy copies of training series: the dataset "multiplier".

Multiplier M is the original and M - 1 copies. A copy adds Gaussian noise to each feature, as wide as `noise` times that
feature's training standard deviation; the target is kept. Copy k is drawn from its own stream, so any worker makes
it alone. Only series cut to the training dates come in here, so nothing later can be copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sp500.data.features import Series
from sp500.seeding import numpy_generator


def copies(train: Sequence[Series], multiplier: int, *, noise: float, scale: np.ndarray, seed: int) -> Iterator[Series]:
    """The training series and their copies. `scale` [feature]: training standard deviations."""
    for number in range(multiplier):
        for series in train:
            yield copy(series, number, noise=noise, scale=scale, seed=seed)


def copy(series: Series, number: int, *, noise: float, scale: np.ndarray, seed: int) -> Series:
    """Copy `number` of a series; copy 0 is the series itself."""
    if number == 0:
        return series
    generator = numpy_generator(seed, "noise", series.ticker, number)
    return replace(series, x=series.x + generator.standard_normal(series.x.shape) * (noise * scale))
