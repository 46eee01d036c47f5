"""Copies of training series: the dataset "multiplier".

Multiplier M is the original and M - 1 copies. Copy k of a series is drawn from a stream of its own, so any worker
makes it alone. Only series cut to the training dates come in here, so nothing later can be copied.

    noise      Gaussian noise on each feature, `noise` training standard deviations wide, and a factor per feature
               and copy, 1 + `jitter` x a normal number; the target is kept
    bootstrap  a new price path: daily returns drawn in blocks of random length (stationary bootstrap, Politis and
               Romano 1994, mean length 20 days), from which features and targets are computed again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from sp500.data.features import CLOSE_FEATURES, WARM_UP, Series, table_of
from sp500.data.windows import Windows
from sp500.errors import DataError
from sp500.seeding import numpy_generator

BLOCK_DAYS = 20.0


@dataclass(frozen=True)
class Augmentation:
    """The way in which copies are made. `scale` [feature or channel]: training standard deviations."""

    method: Literal["noise", "bootstrap"]
    noise: float
    jitter: float
    scale: np.ndarray
    seed: int
    horizon: int = 1


def copies(train: Sequence[Series], multiplier: int, how: Augmentation) -> Iterator[Series]:
    """Yield the training series and their copies."""
    for number in range(multiplier):
        for series in train:
            yield copy(series, number, how)


def copy(series: Series, number: int, how: Augmentation) -> Series:
    """Return copy `number` of a series; copy 0 is the series itself."""
    if number == 0:
        return series
    generator = numpy_generator(how.seed, how.method, series.ticker, number)
    if how.method == "bootstrap":
        return _resample(series, how.horizon, generator)
    noise = generator.standard_normal(series.x.shape) * (how.noise * how.scale)
    factor = 1 + how.jitter * generator.standard_normal(series.x.shape[1])
    return replace(series, x=series.x * factor + noise)


def copy_windows(data: Windows, part: slice, number: int, how: Augmentation) -> tuple[np.ndarray, np.ndarray]:
    """Return X [window, row, ...] and y of copy `number` of some windows; copy 0 are the windows themselves.

    Numbers get noise and a factor as features do; whole numbers are rounded, and stay in their range. Of text, whose
    targets are the next bytes, a share `noise` of the bytes is replaced by random bytes.
    """
    starts, y = data.starts[part], data.targets[part]
    x = data.rows[starts[:, None] + np.arange(data.length)]
    if number == 0:
        return x, y
    if how.method == "bootstrap":
        raise DataError("data.augment bootstrap resamples prices; use noise here")
    generator = numpy_generator(how.seed, how.method, "windows", number, part.start)
    if x.ndim == 2 and y.ndim == 2:
        text = np.concatenate([x, y[:, -1:]], axis=1)
        replacement = generator.integers(0, 256, text.shape, dtype=np.uint8)
        text = np.where(generator.random(text.shape) < how.noise, replacement, text)
        return text[:, :-1], text[:, 1:]
    noise = generator.standard_normal(x.shape) * (how.noise * how.scale)
    copied = x * (1 + how.jitter * generator.standard_normal(x.shape[-1])) + noise
    if x.dtype.kind in "ui":
        copied = np.clip(np.rint(copied), np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    return copied.astype(x.dtype), y


def _resample(series: Series, horizon: int, generator: np.random.Generator) -> Series:
    """Return a path of the same length from the series' own daily returns, its first feature."""
    if series.x.shape[1] != len(CLOSE_FEATURES):
        raise DataError("data.augment bootstrap resamples closing prices; with open, high, low and volume use noise")
    days = len(series.x) + WARM_UP + horizon
    blocks = stationary_bootstrap(len(series.x), -(-days // len(series.x)), BLOCK_DAYS, generator).ravel()[:days]
    log = pd.Series(np.cumsum(series.x[blocks, 0]))
    table = table_of({"close": pd.Series(np.exp(log))})[list(CLOSE_FEATURES)]
    target = log.shift(-horizon) - log
    rows = slice(WARM_UP, WARM_UP + len(series.x))
    return replace(series, x=table.to_numpy(np.float64)[rows], y=target.to_numpy(np.float64)[rows])


def stationary_bootstrap(length: int, resamples: int, block: float, generator: np.random.Generator) -> np.ndarray:
    """Return row numbers [resample, length]: blocks of geometric length with mean `block`, wrapping around the end.

    Politis and Romano (1994).
    """
    fresh = generator.random((resamples, length)) < 1 / block
    fresh[:, 0] = True
    jumps = generator.integers(length, size=(resamples, length))
    positions = np.arange(length)
    last_fresh = np.maximum.accumulate(np.where(fresh, positions, 0), axis=1)
    return (np.take_along_axis(jumps, last_fresh, axis=1) + positions - last_fresh) % length
