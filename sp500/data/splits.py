"""Splits by date: train, a purged gap, validation, a purged gap, test.

The gap is at least window + horizon sessions, so that no training target lies inside a validation window, and no
window of one split overlaps the targets of another (purging: Lopez de Prado 2018, chapter 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp500.errors import DataError


@dataclass(frozen=True)
class Split:
    """First and last forecast date of each part, both included; `valid` is None without a validation part."""

    train: tuple[np.datetime64, np.datetime64]
    valid: tuple[np.datetime64, np.datetime64] | None
    test: tuple[np.datetime64, np.datetime64]


def split(dates: np.ndarray, *, test_fraction: float, valid_from_train: float, gap: int) -> Split:
    """Cut sorted dates [day] at one common place for all tickers.

    `test_fraction` of all dates are the test, `valid_from_train` of the rest the validation; `gap` sessions before each
    are dropped. Raises DataError when a part would be empty.
    """
    test_start = int(len(dates) * (1 - test_fraction))
    return _cut(dates, test_start, valid_from_train=valid_from_train, gap=gap)


def walk_forward(dates: np.ndarray, *, folds: int, test_days: int, valid_from_train: float, gap: int) -> list[Split]:
    """Return splits whose tests of `test_days` sessions follow each other without a hole and end with the last date.

    The idea is to be judged on many years without ever training on a later one: each fold trains on all dates before
    its test (an expanding window), cut into training and validation as `split` does. The price is a fit
    per fold, and first folds with shorter histories. Raises DataError when the dates do not hold them.
    """
    first_train = len(dates) - folds * test_days - gap
    if first_train < 1:
        raise DataError(
            f"too_short: {len(dates)} dates do not hold {folds} tests of {test_days} sessions and dates before them; "
            "use fewer folds, shorter tests, or more dates"
        )
    starts = range(len(dates) - folds * test_days, len(dates), test_days)
    return [_cut(dates[: start + test_days], start, valid_from_train=valid_from_train, gap=gap) for start in starts]


def _cut(dates: np.ndarray, test_start: int, *, valid_from_train: float, gap: int) -> Split:
    valid_start = int(test_start * (1 - valid_from_train)) if valid_from_train else test_start
    train_end = valid_start - gap - 1
    valid_end = test_start - gap - 1
    if train_end < 0 or (valid_from_train and valid_end < valid_start) or test_start >= len(dates):
        raise DataError(
            f"too_short: {len(dates)} dates do not hold train, validation and test with gaps of {gap} sessions; "
            "use more dates, a shorter data.window, or other fractions"
        )
    return Split(
        train=(dates[0], dates[train_end]),
        valid=(dates[valid_start], dates[valid_end]) if valid_from_train else None,
        test=(dates[test_start], dates[-1]),
    )
