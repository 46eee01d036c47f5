"""Two rows of headings, of fields and of tickers, as `yfinance.download` and pandas-datareader give them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from sp500.data.sources.notation import MISSING

FIELDS = ("open", "high", "low", "close", "volume")
ADJUSTED = "adj close"
ALIASES = {
    "symbol": "ticker",
    "adjclose": ADJUSTED,
    "adjusted close": ADJUSTED,
    "close/last": "close",  # Nasdaq.com
    "vol.": "volume",  # Investing.com, as change %
}
UNUSED = {"dividends", "stock splits", "capital gains", "change %"}
"""Columns of downloads that hold no prices."""
LEVELS = {"", "price", "ticker", "tickers", "attributes", "symbols"}
"""First cells of a second row of headings: nothing, or the name of its level."""


def name_usual(heading: str) -> str:
    """Return the usual name of a heading; the heading itself if it has none."""
    plain = re.sub(r"[_ ]+", " ", heading.lower())
    return ALIASES.get(plain, plain if plain == ADJUSTED else heading)


def count_headings(table: pd.DataFrame) -> int:
    """Return the number of rows of headings in a CSV file's text: 1, 2, or 3 with the row that names the index."""
    if len(table) < 3:
        return 1
    first, second, third = (table.iloc[row].fillna("").str.strip().str.lower() for row in range(3))
    numbers = pd.to_numeric(second, errors="coerce").notna()
    are_tickers = not (numbers | second.isin(MISSING))[1:].any()
    if second[0] not in LEVELS or not (_are_fields(second[1:]) or (_are_fields(first[1:]) and are_tickers)):
        return 1
    return 3 if third[0].isalpha() and (third[1:] == "").all() else 2


def stack_tickers(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Return long rows of a frame whose columns are the date and (field, ticker) in any order; None of others."""
    first, second = (pd.Series(frame.columns.get_level_values(level)).astype(str).str.strip() for level in (0, 1))
    fields, tickers = (first, second) if _are_fields(first[1:]) else (second, first)
    if not _are_fields(fields[1:]):
        return None
    parts = []
    for ticker in tickers[1:].unique():
        columns = [0, *(np.flatnonzero(tickers[1:] == ticker) + 1)]
        part = frame.iloc[:, columns].set_axis(["date", *fields[columns[1:]]], axis=1)
        parts.append(part.assign(ticker=ticker))
    return pd.concat(parts)


def _are_fields(headings: pd.Series) -> bool:
    names = {name_usual(heading).lower() for heading in headings}
    return names <= {*FIELDS, ADJUSTED, *UNUSED} and bool(names & {"close", ADJUSTED})
