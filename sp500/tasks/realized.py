"""Realised volatility of daily prices as tables [date, ticker], each value from rows up to its date.

A variance is that of a day's log return. Averages are over a fixed number of sessions, so that a request with the last
days gives the same bits as the whole history.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from sp500.data.prices import Prices

YEAR = 252
"""Sessions of the longest average."""
DECAY = 0.94
"""Of the weights of EWMA (RiskMetrics Technical Document 1996, 4th ed., section 5.3)."""
EWMA_WEIGHTS = DECAY ** np.arange(YEAR)[::-1] * (1 - DECAY) / (1 - DECAY**YEAR)
"""Weights of the last YEAR days, oldest first. All days before would have 1.7e-7 of the weight."""
NOISE = 1e-6
"""Share of a price below which a change is the rounding of an adjusted price, and no step."""


def measure_variance(prices: Prices, measure: str) -> pd.DataFrame:
    """Return the variance of each day.

    closes: r²; parkinson: ln(H/L)² / (4 ln 2) (Parkinson 1980, J. Business 53); garman_klass: ln(H/L)² / 2 -
    (2 ln 2 - 1) ln(C/O)² (Garman and Klass 1980, J. Business 53, eq. 20). The last two leave out the night.
    """
    if measure == "closes":
        return take_log(prices.close).diff() ** 2
    span = take_log(prices["high"] / prices["low"]) ** 2
    if measure == "parkinson":
        return span / (4 * math.log(2))
    return span / 2 - (2 * math.log(2) - 1) * take_log(prices.close / prices["open"]) ** 2


def find_floor(close: pd.DataFrame) -> pd.DataFrame:
    """Return the smallest variance that rounded prices can show: (half of the year's smallest step / close)²."""
    change = close.diff().abs()
    step = change.where(change > NOISE * close).rolling(YEAR, min_periods=1).min()
    return (step / 2 / close) ** 2


def average(table: pd.DataFrame, weights: np.ndarray) -> pd.DataFrame:
    """Return weighted sums of the last rows, the newest by the last weight."""
    values, averages = table.to_numpy(float), np.full(table.shape, np.nan)
    if len(values) >= len(weights):
        for ticker in range(values.shape[1]):
            averages[len(weights) - 1 :, ticker] = np.correlate(values[:, ticker], weights, "valid")
    return pd.DataFrame(averages, table.index, table.columns)


def average_days(table: pd.DataFrame, days: int) -> pd.DataFrame:
    """Return the mean of the last `days` rows."""
    return average(table, np.full(days, 1 / days))


def log_volatility(variance: pd.DataFrame, floor: pd.DataFrame) -> pd.DataFrame:
    """Return 0.5 log(variance), with the floor for a smaller variance."""
    return 0.5 * take_log(variance.where(variance.isna() | (variance > floor), floor))


def take_log(table: pd.DataFrame) -> pd.DataFrame:
    """Return natural logarithms."""
    logs: pd.DataFrame = table.apply(np.log)
    return logs
