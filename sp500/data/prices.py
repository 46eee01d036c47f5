"""Prices: a validated, read-only table of date x ticker.

All sources end in the same type. No code past this module sees a fault: it was repaired by a stated rule and is listed
in `faults`, or loading ended with a DataError.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pandas as pd

from sp500.config import DataConfig
from sp500.data.validation import MAX_CARRIED, Fault, Tables, validate
from sp500.errors import DataError
from sp500.formatting import some

INDEX = "^GSPC"
STOCKS = "stocks"


@dataclass(frozen=True)
class Prices:
    """Daily prices that passed every check.

    Each of `fields` is a table [date, ticker] over NYSE sessions: `close` always, `open`, `high`, `low`, `volume` where
    the source has them. NaN only before a ticker's first and after its last date. `columns` are further columns of
    numbers of the source, in the same shape; these may have holes. `prices["volume"]` is a table of either.
    """

    fields: Tables
    source: str
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    columns: Tables = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("fields", "columns"):
            tables = getattr(self, name)
            object.__setattr__(self, name, {key: _frozen(frame) for key, frame in tables.items()})

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a table [date, ticker] by its name. Raises DataError for one that the source does not have."""
        tables = self.columns | self.fields
        if name not in tables:
            raise DataError(f"{self.source} has no column {name}; it has {', '.join(tables)}")
        return tables[name]

    def select(self, rows: slice = slice(None), tickers: Sequence[str] | None = None, without: str = "") -> Prices:
        """Return these prices with some rows by their number, some tickers, and without one table."""
        places = slice(None) if tickers is None else [self.tickers.index(ticker) for ticker in tickers]
        return self.change(lambda name, frame: None if name == without else frame.iloc[rows, places])

    def change(self, change: Callable[[str, pd.DataFrame], pd.DataFrame | None]) -> Prices:
        """Return prices whose tables are made of these; None leaves one out."""
        both = (self.fields, self.columns)
        made = [{name: change(name, frame) for name, frame in tables.items()} for tables in both]
        fields, columns = ({name: frame for name, frame in tables.items() if frame is not None} for tables in made)
        return Prices(fields, self.source, columns=columns)

    @property
    def close(self) -> pd.DataFrame:
        """Closing prices [date, ticker]."""
        return self.fields["close"]

    @property
    def tickers(self) -> list[str]:
        """Names of the series."""
        return [str(name) for name in self.close.columns]

    @property
    def sha256(self) -> str:
        """Hash of dates, tickers and all values: two runs with the same hash saw the same prices."""
        digest = hashlib.sha256(",".join(self.tickers).encode())
        digest.update(self.close.index.to_numpy().astype("datetime64[D]").astype(np.int64).tobytes())
        for tables in (self.fields, self.columns):
            for name in sorted(tables):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(tables[name].to_numpy(np.float64)).tobytes())
        return digest.hexdigest()


def validate_prices(
    raw: Tables, config: DataConfig, *, source: str, notes: tuple[str, ...] = (), seen: datetime | None = None
) -> Prices:
    """Return validated prices from raw tables that were read at `seen` (default: now), cut to the requested dates."""
    clean, faults = validate(raw, real_moves=config.real_moves, seen=seen, start=config.start, end=config.end)
    return Prices(clean, source, tuple(faults), notes)


def fit_columns(columns: Tables, close: pd.DataFrame) -> tuple[Tables, list[Fault]]:
    """Return tables of further columns on the dates and tickers of validated prices, and the faults repaired.

    Up to MAX_CARRIED sessions without a value take the last one. Longer holes stay: what is made of the column decides
    whether they are allowed.
    """
    faults, fitted = [], {}
    for name, frame in columns.items():
        whole = frame.reindex(index=close.index, columns=close.columns)
        filled = whole.ffill(limit=MAX_CARRIED).where(close.notna())
        for ticker in close.columns:
            carried = np.flatnonzero(filled[ticker].notna() & whole[ticker].isna())
            if len(carried):
                detail = f"{name} on {some(len(carried), 'session')} without a value; last values carried forward"
                faults.append(Fault("missing", str(ticker), f"{close.index[carried[0]]:%Y-%m-%d}", detail, True))
        fitted[name] = filled
    return fitted, faults


def select(raw: Tables, tickers: tuple[str, ...], source: str) -> Tables:
    """Return the columns of these tickers in any case; `stocks` means all but the index."""
    have = [str(name) for name in raw["close"].columns]
    spelled = {name.casefold(): name for name in have}
    names: list[str] = []
    for name in map(str.strip, tickers):
        one = [name if name in have else spelled.get(name.casefold(), name)]
        names += [other for other in have if other != INDEX] if name == STOCKS else one
    missing = [name for name in names if name not in have]
    if missing or not names:
        near = difflib.get_close_matches(missing[0], have, n=1) if missing else []
        hint = "; separate names by blanks" if "," in "".join(missing) else f"; did you mean {near[0]}?" if near else ""
        text = f"{source} has no {', '.join(missing) or 'stocks'}; it has {', '.join(have)}"
        raise DataError(f"data.tickers: {text}{hint}")
    unique = list(dict.fromkeys(names))
    return {name: frame[unique] for name, frame in raw.items()}


def _frozen(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a read-only copy that does not change when the original table does."""
    values = frame.to_numpy(np.float64, copy=True)
    values.flags.writeable = False
    return pd.DataFrame(values, index=frame.index, columns=frame.columns, copy=False)
