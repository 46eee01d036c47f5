"""A long file of daily prices with two further columns, and what is true of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from sp500.data import sessions

TICKERS = ("AAA", "BBB")
NEWS = 0.006
"""Of the next day's log return, for each unit of the column `news`."""


def make_table(days: int = 700, start: str = "2015-01-02") -> pd.DataFrame:
    """Return rows of two tickers; half of the next return is known from `news`, nothing from `mood`."""
    generator = np.random.default_rng(7)
    dates = sessions.between(pd.Timestamp(start), pd.Timestamp("2019-12-31"))[:days]
    parts = []
    for ticker in TICKERS:
        news, moves = generator.standard_normal(days), 0.008 * generator.standard_normal(days)
        moves[1:] += NEWS * news[:-1]
        columns = {"close": 100 * np.exp(np.cumsum(moves)), "news": news, "mood": generator.random(days)}
        parts.append(pd.DataFrame({"date": dates.strftime("%Y-%m-%d"), "ticker": ticker, **columns, "sector": "tech"}))
    return pd.concat(parts, ignore_index=True)


def write(path: Path, table: pd.DataFrame | None = None) -> str:
    """Write the table as CSV and return its path."""
    (make_table() if table is None else table).to_csv(path, index=False)
    return str(path)
