"""Features: the inputs that are known at the close of day t.

Every column is causal: its value on day t is computed from prices up to t, never later ones; a property test changes
the future and compares bits. The target of day t is the log return from t to t + horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sp500.data.prices import Prices
from sp500.errors import DataError

CLOSE_FEATURES = ("log_return", "momentum_5", "momentum_20", "volatility_20", "rsi_14", "distance_50")
# Days at the start of a series on which the longest feature is not known yet.
WARM_UP = 49
OHLCV_FEATURES = ("range", "gap", "volume_change")


@dataclass(frozen=True)
class Series:
    """One ticker's features, first row to last without a hole.

    dates [day]; x [day, feature]; y [day], the log return over the next `horizon` days, NaN where not known yet. Where
    a task has a target of its own, y is that, and `returns` [day] are these log returns. `known` are columns [day] that
    its naive forecasts are made of.
    """

    ticker: str
    dates: np.ndarray
    x: np.ndarray
    y: np.ndarray
    returns: np.ndarray | None = None
    known: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Features:
    """Features of all tickers, and the names of the columns of x. `state` says what a request to the model has to hold,
    where the columns are not the built-in ones.
    """

    names: tuple[str, ...]
    series: tuple[Series, ...]
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dates(self) -> np.ndarray:
        """All days on which any ticker has features, in order."""
        return np.unique(np.concatenate([series.dates for series in self.series]))


def features(prices: Prices, horizon: int = 1) -> Features:
    """Return the feature table of each ticker without the days before a feature is known (50 at the start)."""
    series = tuple(_series(prices, ticker, horizon) for ticker in prices.tickers)
    return Features(names(prices), series)


def names(prices: Prices) -> tuple[str, ...]:
    """Return the names of the features that these prices allow."""
    complete = {"open", "high", "low", "volume"} <= prices.fields.keys()
    return CLOSE_FEATURES + (OHLCV_FEATURES if complete else ())


def _series(prices: Prices, ticker: str, horizon: int) -> Series:
    fields = {name: frame[ticker].dropna() for name, frame in prices.fields.items()}
    close = fields["close"]
    table = table_of(fields)[list(names(prices))].dropna()
    if len(table) <= horizon:
        raise DataError(f"too_short: {ticker} has {len(close)} prices; features need 50 and a target {horizon} more")
    log = np.log(close)
    target = (log.shift(-horizon) - log).reindex(table.index)
    dates = table.index.to_numpy().astype("datetime64[D]")
    return Series(ticker, dates, table.to_numpy(np.float64), target.to_numpy(np.float64))


def table_of(fields: dict[str, pd.Series]) -> pd.DataFrame:
    """Return features [day, name] of one ticker from those of its open, high, low, close and volume that are given."""
    index = fields["close"].index
    return pd.DataFrame(
        columns_of({name: column.reindex(index).to_numpy(float) for name, column in fields.items()}), index
    )


def columns_of(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the features as plain arrays [day], from plain arrays.

    RSI with simple means over 14 days (Cutler's variant of Wilder 1978, which depends on the last 14 days only,
    where Wilder's own smoothing depends on where the series starts), scaled to -1..1.
    """
    log = np.log(fields["close"])
    change = _change(log, 1)
    up, down = _mean(np.clip(change, 0, None), 14), _mean(np.clip(-change, 0, None), 14)
    moved = up + down
    still = moved <= 1e-12
    columns = {
        "log_return": change,
        "momentum_5": _change(log, 5),
        "momentum_20": _change(log, 20),
        "volatility_20": _std(change, 20),
        "rsi_14": np.where(still, 0.0, (up - down) / np.where(still, 1.0, moved)),
        "distance_50": log - _mean(log, 50),
    }
    if {"open", "high", "low", "volume"} <= fields.keys():
        columns |= {
            "range": np.log(fields["high"] / fields["low"]),
            "gap": np.log(fields["open"]) - _shift(log, 1),
            # The first volume after days that have none says nothing about a change.
            "volume_change": np.where(_shift(fields["volume"], 1) == 0, 0.0, _change(np.log1p(fields["volume"]), 1)),
        }
    return columns


def _shift(values: np.ndarray, days: int) -> np.ndarray:
    return _pad(values[:-days], len(values))


def _change(values: np.ndarray, days: int) -> np.ndarray:
    return _pad(values[days:] - values[:-days], len(values))


def _windows(values: np.ndarray, length: int) -> np.ndarray:
    """Return views [day, length] of the last `length` values.

    pandas' rolling sums carry rounding errors from far back: a change of a distant past value alters the last bit of
    today's, which these views rule out.
    """
    return np.lib.stride_tricks.sliding_window_view(values, length)


def _mean(values: np.ndarray, length: int) -> np.ndarray:
    known = _windows(values, length).mean(axis=1) if len(values) >= length else np.empty(0)
    return _pad(known, len(values))


def _std(values: np.ndarray, length: int) -> np.ndarray:
    known = _windows(values, length).std(axis=1, ddof=1) if len(values) >= length else np.empty(0)
    return _pad(known, len(values))


def _pad(known: np.ndarray, days: int) -> np.ndarray:
    """Return values [day] with NaN for the first days, on which they are unknown."""
    return np.concatenate([np.full(days - len(known), np.nan), known])
