"""Features and targets that are not the built-in ones: chosen by name, or computed by a task of the user's.

Whatever they come from, they end in the same `Features`. A series has no hole after its first day with all columns, so
that a window is always consecutive sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from sp500.data.features import CLOSE_FEATURES, OHLCV_FEATURES, WARM_UP, Features, Series, features, table_of
from sp500.data.prices import Prices
from sp500.data.sources.headings import FIELDS
from sp500.data.validation import Tables
from sp500.errors import DataError

BUILT_IN = (*CLOSE_FEATURES, *OHLCV_FEATURES)
ROWS = "a DataFrame with rows (date, ticker) and a column per feature, or a dict of tables [date, ticker] by name"


@dataclass(frozen=True)
class Hooks:
    """What a task puts in place of the pipeline's own steps.

    names: columns by name, () for the built-in ones; features: computes them (see ROWS); target: computes the table
    [date, ticker] of what is forecast; constant: the best constant forecast of targets [window] in the model's units;
    history: rows that features need, 0 for what the probe starts with. Of the built-in tasks only: review looks at the
    prices first; needs is what a request has to hold, so that nothing is tried; known computes tables [date, ticker]
    that naive forecasts are made of, and fit fits these on the rows [target, known ...] of the training windows.
    """

    names: tuple[str, ...] = ()
    features: Callable[[Prices], Any] | None = None
    target: Callable[[Prices], Any] | None = None
    constant: Callable[[np.ndarray], float] | None = None
    history: int = 0
    review: Callable[[Prices], Prices] | None = None
    needs: Mapping[str, object] | None = None
    known: Callable[[Prices], Tables] | None = None
    fit: Callable[[pd.DataFrame], dict[str, Any]] | None = None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns of a file that are not among the usual ones, to be read with the prices; None: all."""
        if self.features and self.needs is None:
            return None
        return tuple(name for name in self.names if name not in {*BUILT_IN, *FIELDS})


NO_HOOKS = Hooks()


def build(prices: Prices, horizon: int, hooks: Hooks = NO_HOOKS) -> Features:
    """Return the features of all tickers. Raises DataError that names column, ticker and date of what is wrong."""
    if not (hooks.names or hooks.features or hooks.target):
        return features(prices, horizon)
    tables = compute_features(prices, hooks)
    target = compute_target(prices, hooks) if hooks.target else None
    series = tuple(_series(prices, ticker, tables, target, horizon) for ticker in prices.tickers)
    if hooks.known:
        known = hooks.known(prices)
        series = tuple(_add_known(ticker, known) for ticker in series)
    return Features(tuple(tables), series, _describe_names(tables, prices, hooks))


def compute_features(prices: Prices, hooks: Hooks) -> Tables:
    """Return a table [date, ticker] by the name of each column, on the dates and tickers of the prices."""
    if hooks.features:
        return _as_tables(hooks.features(prices), prices)
    wanted = hooks.names or tuple(name for name in BUILT_IN if name in _built_in(prices, prices.tickers[0]))
    own = {name: prices[name] for name in wanted if name not in BUILT_IN}
    tables: Tables = {}
    if len(own) < len(wanted):
        known = {ticker: _built_in(prices, ticker) for ticker in prices.tickers}
        for name in wanted:
            if name in own:
                continue
            if name not in known[prices.tickers[0]]:
                raise DataError(f"data.features {name} needs open, high, low and volume, which {prices.source} lacks")
            table = pd.DataFrame({ticker: columns[name] for ticker, columns in known.items()})
            tables[name] = table.reindex(prices.close.index)
    return {name: own[name] if name in own else tables[name] for name in wanted}


def find_first(tables: Tables) -> int:
    """Return the number of the first row on which any ticker has all columns; 0 where none has."""
    known = np.logical_and.reduce([np.isfinite(table.to_numpy(float)) for table in tables.values()])
    return int(known.any(axis=1).argmax())


def compute_target(prices: Prices, hooks: Hooks) -> pd.DataFrame:
    """Return the task's own target [date, ticker]."""
    assert hooks.target
    table = hooks.target(prices)
    if not isinstance(table, pd.DataFrame) or isinstance(table.index, pd.MultiIndex):
        raise DataError(f"target returned {type(table).__name__}, expected a DataFrame with rows date, columns ticker")
    return _fit("target", table, prices)


def _built_in(prices: Prices, ticker: str) -> pd.DataFrame:
    return table_of({name: frame[ticker].dropna() for name, frame in prices.fields.items()})


def _as_tables(given: object, prices: Prices) -> Tables:
    """Return what `features` gave as tables. Raises DataError for another shape, and for texts."""
    if isinstance(given, pd.DataFrame):
        rows = given.index
        if not isinstance(rows, pd.MultiIndex) and len(prices.tickers) == 1:
            given = {name: given[[name]].set_axis(prices.tickers, axis=1) for name in given.columns}
        elif rows.nlevels != 2 or not given.columns.is_unique:
            raise DataError(f"features returned rows with {rows.nlevels} levels; expected {ROWS}")
        elif not rows.is_unique:
            raise DataError(f"features returned row {rows[rows.duplicated()][0]} twice; expected {ROWS}")
        else:
            given = {name: given[name].unstack() for name in given.columns}
    if not isinstance(given, Mapping) or not given:
        raise DataError(f"features returned {type(given).__name__}; expected {ROWS}")
    return {str(name): _fit(str(name), table, prices) for name, table in given.items()}


def _fit(name: str, table: object, prices: Prices) -> pd.DataFrame:
    """Return a table on the dates and tickers of the prices."""
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"column {name} is {type(table).__name__}; expected a table [date, ticker]")
    if wrong := [ticker for ticker in table.columns if not types.is_numeric_dtype(table[ticker])]:
        raise DataError(f"column {name} of {wrong[0]} is {table[wrong[0]].dtype}; expected numbers")
    if not (set(map(str, table.columns)) & set(prices.tickers) and table.index.isin(prices.close.index).any()):
        raise DataError(f"column {name} has no date or no ticker of the prices; expected {ROWS}")
    return table.reindex(index=prices.close.index, columns=prices.close.columns).astype(float)


def _series(prices: Prices, ticker: str, tables: Tables, target: pd.DataFrame | None, horizon: int) -> Series:
    close = prices.close[ticker].dropna()
    table = pd.DataFrame({name: frame[ticker] for name, frame in tables.items()}).reindex(close.index)
    finite = np.isfinite(table.to_numpy(float))
    begun = np.flatnonzero(finite.all(axis=1))
    if not len(begun):
        never = next((name for name, known in zip(table, finite.T, strict=True) if not known.any()), table.columns[0])
        raise DataError(f"too_short: column {never} is never known for {ticker}, which has {len(close)} prices")
    table, holes = table.iloc[begun[0] :], np.argwhere(~finite[begun[0] :])
    if len(holes):
        row, column = holes[0]
        raise DataError(
            f"column {table.columns[column]} of {ticker} has no finite number on {table.index[row]:%Y-%m-%d}, after its"
            " first day: fill it with what was known on that day, such as .ffill() or 0"
        )
    if len(table) <= horizon:
        raise DataError(
            f"too_short: {ticker} has {len(table)} days with all features, and a target needs {horizon} more"
        )
    log = np.log(close)
    returns = (log.shift(-horizon) - log).reindex(table.index).to_numpy(np.float64)
    dates, x = table.index.to_numpy().astype("datetime64[D]"), table.to_numpy(np.float64)
    if target is None:
        return Series(ticker, dates, x, returns)
    own = target[ticker].reindex(table.index)
    if (infinite := np.isinf(own.to_numpy(float))).any():
        raise DataError(f"target of {ticker} is infinite on {own.index[infinite][0]:%Y-%m-%d}")
    return Series(ticker, dates, x, own.to_numpy(np.float64), returns)


def _add_known(series: Series, known: Tables) -> Series:
    dates = pd.DatetimeIndex(series.dates)
    columns = {name: table[series.ticker].reindex(dates).to_numpy(np.float64) for name, table in known.items()}
    return replace(series, known=columns)


def _describe_names(tables: Tables, prices: Prices, hooks: Hooks) -> dict[str, Any]:
    """Return what a request needs where columns are chosen by name; the probe finds it for those that are computed."""
    if hooks.features or not hooks.names:
        return {}
    needs_all = any(name in OHLCV_FEATURES for name in tables)
    own = [name for name in tables if name not in BUILT_IN]
    prices_of = [name for name in FIELDS if name == "close" or name in own or needs_all]
    past = WARM_UP if any(name in BUILT_IN for name in tables) else 0
    return {"columns": [*prices_of, *(name for name in own if name not in prices.fields)], "past": past}
