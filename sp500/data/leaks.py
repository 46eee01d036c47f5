"""Tries columns and targets that a user computes for values of the future, on prices whose future is changed.

A column must have the same values up to a date when it is computed twice, when the rows after that date are cut off,
and when they are replaced by other numbers. It must have the same values on the last days when only the last `history`
rows are there, since a request to the trained model has no more. The price is about 40 calls of the user's code, and 30
for a target.

No probe can see a column of a file that was written later than its date says, a function that answers by the day on
which it is called, nor a leak on rare dates only, such as the last day of each month: about 14 dates are tried.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sp500.data.columns import Hooks, compute_features, compute_target
from sp500.data.prices import Prices
from sp500.data.splits import Split
from sp500.data.validation import Tables
from sp500.errors import DataError, attempt
from sp500.seeding import numpy_generator

DATES = 8
"""Fewest dates that are tried, among them both ends of each split."""
TOLERANCE, FRONT_TOLERANCE = 1e-9, 1e-6
"""Largest change, in standard deviations of the column: of the past, and when the rows before `history` are cut off."""
HISTORY = 60
"""Rows before a window that columns may look back by themselves."""

Compute = Callable[[Prices], Tables]


@dataclass(frozen=True)
class Difference:
    """Where a column has changed."""

    column: str
    ticker: str
    date: str

    def __str__(self) -> str:
        return f"column {self.column} of {self.ticker} on {self.date}"


def choose_rows(dates: pd.DatetimeIndex, first: np.datetime64, cut: Split | None, horizon: int) -> list[int]:
    """Return numbers of rows to try: both ends of each split, and so many between that there are at least DATES.

    `first` is the first date with features. The last `horizon` rows are left out: they have no target.
    """
    days = dates.to_numpy().astype("datetime64[D]")
    begin, end = int(np.searchsorted(days, first)), len(days) - 1 - horizon
    spread = np.linspace(begin, max(end, begin), DATES + 2).astype(int)[1:-1].tolist()
    spans = (cut.train, cut.valid, cut.test) if cut else ()
    ends = [int(np.searchsorted(days, day)) for span in spans if span for day in span]
    return sorted({min(row, max(end, begin)) for row in [*ends, *spread]})


def probe_features(prices: Prices, hooks: Hooks, rows: Sequence[int], window: int) -> dict[str, object]:
    """Try the columns on these rows and return what a request to the model needs: columns, history, across.

    `across` are columns that depend on other tickers; `whole` says that columns need all days. Raises DataError that
    names column and date.
    """
    probe = _Probe(lambda prices: compute_features(prices, hooks), prices)
    probe.check_repeats()
    for changed, after in probe.change_future(rows, 0):
        raise DataError(
            f"{changed} changes when {after}: it looks into the future. Compute it from rows up to its date: no "
            "shift(-n), no rolling(center=True), no mean, maximum or fit over all rows"
        )
    history, every = hooks.history or window + HISTORY, len(prices.close)
    if history >= every:  # all days before count, which no request but only the run's own source has
        return {**probe.find_needs(every), "history": window + HISTORY, "whole": True}
    history = probe.find_history(rows, window, history)
    return {**probe.find_needs(history), "history": history}


def probe_target(prices: Prices, hooks: Hooks, rows: Sequence[int], horizon: int) -> None:
    """Try the target, which may look ahead by `horizon` sessions. Raises DataError that names the date."""
    probe = _Probe(lambda prices: {"target": compute_target(prices, hooks)}, prices)
    probe.check_repeats()
    for changed, after in probe.change_future(rows, horizon):
        raise DataError(
            f"{changed} changes when {after}: it looks further ahead than data.horizon = {horizon} sessions; set "
            "--data.horizon to how far it looks, or shorten it"
        )


class _Probe:
    """Tables computed from prices, and again from prices that were changed."""

    def __init__(self, compute: Compute, prices: Prices) -> None:
        self._compute, self._prices, self._whole = compute, prices, compute(prices)

    def check_repeats(self, prices: Prices | None = None) -> None:
        """Raise DataError where three calls with the same prices differ."""
        first = self._compute(prices) if prices else self._whole
        prices = prices or self._prices
        for _ in range(2):
            if changed := _compare(first, self._compute(prices), len(prices.close), TOLERANCE):
                raise DataError(
                    f"{changed} is not the same in two calls with the same prices: seed it, and read nothing else"
                )

    def change_future(self, rows: Sequence[int], ahead: int) -> Iterator[tuple[Difference, str]]:
        """Cut off, and then replace, what comes more than `ahead` rows after each of these rows. Yield the changes."""
        days = self._prices.close.index
        for row in rows:
            last = min(row + ahead, len(days) - 1)
            ways = {"cut off": self._prices.select(slice(last + 1)), "replaced": _replace(self._prices, last)}
            for way, other in ways.items():
                if changed := _compare(self._whole, self._compute(other), row + 1, TOLERANCE):
                    self.check_repeats(other)
                    yield changed, f"the rows after {days[last]:%Y-%m-%d} are {way}"

    def find_history(self, rows: Sequence[int], window: int, least: int) -> int:
        """Return how many rows a request needs. Raises DataError where that is more than `least`."""
        every = len(self._prices.close)
        ends = sorted({rows[len(rows) // 2], rows[-1], every - 1})
        length, first = least, None
        while changed := self._check_front(ends, window, length):
            first, length = first or changed, 2 * length
            if length >= every:
                raise DataError(
                    f"{first} changes when only the last {least} rows are there, and with {length // 2} as well: it "
                    "depends on all days before. Use rolling windows; or write 'history = 1_000_000', so that only "
                    "the server's own prices are forecast"
                )
        if first:
            raise DataError(
                f"{first} changes when only the last {least} rows are there. It needs about {length}: write "
                f"'history = {length}' in the class, or look back less"
            )
        return least

    def _check_front(self, ends: Sequence[int], window: int, length: int) -> Difference | None:
        """Return where the last `window` rows differ when only `length` rows up to one of `ends` are there."""
        for end in ends:
            first = max(end + 1 - length, 0)
            part = self._compute(self._prices.select(slice(first, end + 1)))
            last = slice(max(end + 1 - window, first), end + 1)
            same = {name: frame.iloc[last] for name, frame in self._whole.items()}
            later = {name: frame.iloc[last.start - first :] for name, frame in part.items()}
            if changed := _compare(same, later, window, FRONT_TOLERANCE, self._whole):
                return changed
        return None

    def find_needs(self, history: int) -> dict[str, object]:
        """Return the tables that the last rows are made of, and the columns that depend on other tickers."""
        prices = self._prices.select(slice(-history, None))
        before = self._compute(prices)

        def differs(other: Prices) -> list[str]:
            after = attempt(lambda: self._compute(other), lambda error: {})  # whatever it raises, it cannot do without
            if not after:
                return list(before)
            same = {name: frame[other.tickers] for name, frame in before.items()}
            return [name for name in same if _compare({name: same[name]}, after, history, FRONT_TOLERANCE, before)]

        tables = [name for name in (*prices.fields, *prices.columns) if name != "close"]
        used = [name for name in tables if differs(prices.select(without=name))]
        # A column relative to one ticker is itself when that ticker is there: so two are tried, each on its own.
        ends = {prices.tickers[0], prices.tickers[-1]} if len(prices.tickers) > 1 else set()
        differing = {name for ticker in ends for name in differs(prices.select(tickers=[ticker]))}
        across = [name for name in before if name in differing]
        return {"columns": ["close", *used], "across": across}


def _replace(prices: Prices, last: int) -> Prices:
    """Return the prices with other values after a row: prices on another path, and other columns in another order."""

    def change(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table with other values after the row."""
        values = frame.to_numpy(float, copy=True)
        later = values[last + 1 :]
        if name in {"open", "high", "low", "close"}:
            moves = numpy_generator(last, "path").normal(0, 0.05, later.shape)
            later *= np.exp(np.cumsum(moves, axis=0) + 1.5)
        else:
            generator = numpy_generator(last, "column", zlib.crc32(name.encode()))
            sign = 1 if name == "volume" else -1
            for ticker in range(later.shape[1]):
                known = np.isfinite(later[:, ticker])
                later[known, ticker] = generator.permutation(later[known, ticker]) * sign * 3
                later[known, ticker] += generator.random(known.sum())
        return pd.DataFrame(values, frame.index, frame.columns)

    return prices.change(change)


def _compare(
    before: Tables, after: Tables, rows: int, tolerance: float, scale: Tables | None = None
) -> Difference | None:
    """Return the last difference in the first `rows` rows, in standard deviations of `scale` (default: `before`)."""
    for name, frame in before.items():
        if name not in after:
            return Difference(name, str(frame.columns[0]), f"{frame.index[min(rows, len(frame)) - 1]:%Y-%m-%d}")
        old, new = frame.to_numpy(float)[:rows], after[name].to_numpy(float)[:rows]
        values = (scale or before)[name].to_numpy(float)
        known = values[np.isfinite(values)]
        spread = (float(known.std()) or float(np.abs(known).max()) or 1.0) if len(known) else 1.0
        with np.errstate(invalid="ignore"):
            same = (np.abs(old - new) <= tolerance * spread) | (old == new) | (np.isnan(old) & np.isnan(new))
        if not same.all():
            row, ticker = np.argwhere(~same)[-1]
            return Difference(name, str(frame.columns[ticker]), f"{frame.index[row]:%Y-%m-%d}")
    return None
