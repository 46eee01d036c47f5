"""A dataset and noisy copies of its training windows, for data that does not come from series of prices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sp500.config import DataConfig
from sp500.data import augment
from sp500.data.augment import Augmentation
from sp500.data.shards.writer import WindowsSource
from sp500.data.windows import Dataset, Windows, memory_error
from sp500.runs.results import DataCard

PART = 4096
"""Windows that are copied at once."""


@dataclass(frozen=True)
class Copied:
    """A dataset whose training windows will be copied `config.multiplier` times."""

    data: Dataset
    config: DataConfig

    def source(self) -> WindowsSource:
        """Return the source from which shards of the training part are written."""
        config, rows = self.config, self.data.train.rows
        spread = _deviation(rows) if rows.ndim > 1 else np.ones(1)
        how = Augmentation(config.augment, config.noise, config.jitter, spread, config.seed)
        return WindowsSource(self.data.train, config.multiplier, how)

    def dataset(self, dtype: str, *, multiplier: int | None = None) -> Dataset:
        """Return the dataset with its copies: `multiplier` times the training windows (default: the config's)."""
        total = multiplier or self.config.multiplier
        return replace(self, config=self.config.model_copy(update={"multiplier": total})).materialise(dtype)

    def materialise(self, dtype: str) -> Dataset:
        """Return the dataset with every training window copied out. Raises MemoryError with the needed bytes."""
        del dtype  # rows have their own
        source = self.source()
        if source.multiplier == 1:
            return self.data
        layout = source.layout
        needed = source.windows * layout.line_bytes
        try:
            x = np.empty((source.windows, layout.window, *layout.row), layout.dtype)
            y = np.empty((source.windows, *layout.target), layout.target_dtype)
        except MemoryError as error:
            raise memory_error(source.windows, needed) from error
        done = 0
        for number in range(source.shards):
            copy, part = source.part(number)
            xs, ys = augment.copy_windows(source.data, part, copy, source.how)
            x[done : done + len(xs)], y[done : done + len(xs)], done = xs, ys, done + len(xs)
        train = Windows(x.reshape(-1, *layout.row), np.arange(done) * layout.window, y, layout.window)
        card: DataCard = {**self.data.card, "windows": {**self.data.card["windows"], "train": done}}
        return replace(self.data, train=train, card=card)


def _deviation(rows: np.ndarray) -> np.ndarray:
    """Return the standard deviation [feature or channel] over all rows.

    Rows are read in parts: whole numbers as floats need eight times their memory.
    """
    count, total, squares = 0, 0.0, 0.0
    for first in range(0, len(rows), PART):
        part = rows[first : first + PART].reshape(-1, rows.shape[-1]).astype(np.float64)
        count, total, squares = count + len(part), total + part.sum(axis=0), squares + (part**2).sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0)))
