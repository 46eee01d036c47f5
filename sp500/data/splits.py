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
    valid_start = int(test_start * (1 - valid_from_train)) if valid_from_train else test_start
    train_end = valid_start - gap - 1
    valid_end = test_start - gap - 1
    if train_end < 0 or (valid_from_train and valid_end < valid_start) or test_start >= len(dates):
        raise DataError(
            f"too_short: {len(dates)} dates do not hold train, validation and test with gaps of {gap} sessions; "
            "take more dates, a shorter data.window, or other fractions"
        )
    return Split(
        train=(dates[0], dates[train_end]),
        valid=(dates[valid_start], dates[valid_end]) if valid_from_train else None,
        test=(dates[test_start], dates[-1]),
    )
