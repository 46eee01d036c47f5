"""Windows are views over rows: a million of them cost no memory until a batch is copied.

Rows are segments end to end, each row once: a day of features, an image, a token. A window is named by its first row
and never crosses a segment.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sp500 import formatting
from sp500.data.features import Series
from sp500.errors import DataError
from sp500.machine.memory import pss_bytes
from sp500.runs.results import DataCard

MASKED = -100
"""Class number that no loss counts, as in torch's cross entropy: padding, or the prompt of an instruction."""


def memory_error(windows: int, needed: int) -> MemoryError:
    """Return the error for windows that do not fit in memory as arrays of `needed` bytes.

    The report's scale section reads both sizes out of its text.
    """
    has = formatting.size(pss_bytes())
    return MemoryError(f"{windows:,} windows as arrays need {formatting.size(needed)}, besides {has} of the process")


@dataclass(frozen=True)
class Windows:
    """Windows of one split.

    rows [row, ...], for prices [row, feature] of the run's number type; starts [window], the first row of each; targets
    [window], a float or a class number (MASKED: none), or [window, row] if each row of a window has one; length,
    rows per window.
    `index` names each window where it came from prices: date, ticker, return (realised over the horizon) and previous
    (the horizon before, known on that date); where the task has a target of its own also target, which previous is of,
    and the columns that its naive forecasts are made of.
    """

    rows: np.ndarray
    starts: np.ndarray
    targets: np.ndarray
    length: int
    index: pd.DataFrame | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def flatten(self) -> np.ndarray:
        """Return the windows side by side [window, length * row]: a view where each begins after the one before."""
        count, row = len(self), self.rows.shape[1:]
        if np.array_equal(self.starts, np.arange(count) * self.length):
            return self.rows[: count * self.length].reshape(count, -1)
        flat = np.empty((count, self.length, *row), self.rows.dtype)
        for day in range(self.length):
            flat[:, day] = self.rows[self.starts + day]
        return flat.reshape(count, -1)


def target_mask(targets: np.ndarray) -> np.ndarray | None:
    """Return a mask of the targets that do not count, of the same shape; None if all do."""
    mask = targets == MASKED if targets.dtype.kind == "i" else None
    return mask if mask is not None and mask.any() else None


@dataclass(frozen=True)
class Dataset:
    """The data that a model is trained, stopped and judged on.

    outputs: numbers that a model gives per target. target_scale is what targets were divided by: a forecast is the
    model's output times it. naive_output is where training starts, so that the untrained model is the naive forecast:
    the training mean of the targets, or its log odds if they are 0 and 1. `card` says where the data came from, as
    the record keeps it; its counts and hash are added if they are not there, so that changed data is noticed.
    `state` is plain data that was fitted on the training part, such as means: the run keeps it, and a task makes a
    model from it, also if the windows are no longer there.
    """

    train: Windows
    valid: Windows | None
    test: Windows
    target_scale: float = 1.0
    naive_output: float = 0.0
    card: DataCard = field(default_factory=DataCard)
    outputs: int = 1
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "sha256" not in self.card:
            object.__setattr__(self, "card", {**self._count_and_hash(), **self.card})

    def _count_and_hash(self) -> DataCard:
        digest, parts = hashlib.sha256(), {"train": self.train, "valid": self.valid, "test": self.test}
        present = {name: part for name, part in parts.items() if part is not None}
        for part in present.values():
            for array in (part.rows, part.starts, part.targets):
                digest.update(np.ascontiguousarray(array).data)
        return {"sha256": digest.hexdigest(), "windows": {name: len(part) for name, part in present.items()}}

    @property
    def window(self) -> int:
        """Rows of a window."""
        return self.train.length

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self.train.rows.shape[1:]

    @property
    def features(self) -> int:
        """Numbers of a row."""
        return math.prod(self.row)

    @property
    def sha256(self) -> str:
        """Hash of the source data. Empty for data that only the settings determine."""
        return self.card.get("sha256", "")


def compute_naive_output(targets: np.ndarray, *, direction: bool) -> float:
    """Return `Dataset.naive_output` for these training targets: their mean, or the log odds of those above 0.

    Raises DataError if none is known.
    """
    known = targets[np.isfinite(targets)].astype(np.float64)
    if not len(known):
        raise DataError("too_short: no training window has a known target; use an earlier data.start or fewer tickers")
    if not direction:
        return float(known.mean())
    ups = min(max(float((known > 0).sum()), 0.5), len(known) - 0.5)  # half a window keeps the odds finite
    return math.log(ups / (len(known) - ups))


def windows(
    series: Iterable[Series],
    span: tuple[np.datetime64, np.datetime64],
    length: int,
    *,
    horizon: int = 1,
    dtype: str = "float32",
    with_index: bool = True,
) -> Windows:
    """Return windows whose last day, the day of the forecast, lies in `span`, and whose target is known.

    A window may reach back before the span, into the purged gap, but not beyond the series' first row.
    """
    rows, starts, targets, index = [], [], [], []
    offset = 0
    for ticker in series:
        inside = (ticker.dates >= span[0]) & (ticker.dates <= span[1]) & np.isfinite(ticker.y)
        ends = np.flatnonzero(inside)
        ends = ends[ends >= length - 1]
        if not len(ends):
            continue
        first, last = ends[0] - length + 1, ends[-1]
        rows.append(ticker.x[first : last + 1])
        starts.append(ends - length + 1 - first + offset)
        targets.append(ticker.y[ends])
        if with_index:
            index.append(_index_windows(ticker, ends, horizon))
        offset += last + 1 - first
    if not rows:
        return Windows(np.empty((0, 0), dtype), np.empty(0, np.int64), np.empty(0, dtype), length)
    return Windows(
        rows=np.ascontiguousarray(np.concatenate(rows), dtype=dtype),
        starts=np.concatenate(starts).astype(np.int64),
        targets=np.concatenate(targets).astype(dtype),
        length=length,
        index=pd.concat(index, ignore_index=True) if index else None,
    )


def _index_windows(series: Series, ends: np.ndarray, horizon: int) -> pd.DataFrame:
    # What was the target `horizon` days ago is the latest return known today.
    previous = np.where(ends >= horizon, series.y[np.maximum(ends - horizon, 0)], 0.0)
    returns = series.y if series.returns is None else series.returns
    index = pd.DataFrame(
        {"date": series.dates[ends], "ticker": series.ticker, "return": returns[ends], "previous": previous}
    )
    if series.returns is None:
        return index
    known = {name: column[ends] for name, column in series.known.items()}
    return index.assign(target=series.y[ends], previous=np.nan_to_num(previous), **known)
