"""Trading days of the New York Stock Exchange, looked up in a calendar that is built once per process."""

from __future__ import annotations

import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import pandas as pd

NEW_YORK = ZoneInfo("America/New_York")

_lock = threading.Lock()
_years = (0, 0)
_closes = pd.Series(dtype="datetime64[ns, UTC]", index=pd.DatetimeIndex([]))
"""The end of each session, by session."""


def between(first: pd.Timestamp, last: pd.Timestamp) -> pd.DatetimeIndex:
    """Return the sessions from `first` to `last`, both included.

    A calendar takes up to a second to build, so it is cached. It is built again only for years that it lacks.
    """
    known = pd.DatetimeIndex(_covering(first.year, last.year).index)
    return known[int(known.searchsorted(first)) : int(known.searchsorted(last, side="right"))]


def after(day: pd.Timestamp, count: int) -> pd.Timestamp:
    """Return the session `count` sessions after `day`."""
    known = pd.DatetimeIndex(_covering(day.year, (day + pd.Timedelta(days=2 * count + 10)).year).index)
    return known[int(known.searchsorted(day, side="right")) + count - 1]


def closes_after(day: pd.Timestamp, moment: datetime) -> bool:
    """Return whether `day` is a session that closes after a moment; early closes count."""
    if day.date() < moment.astimezone(NEW_YORK).date():
        return False
    close = _covering(day.year, day.year).get(day)
    return close is not None and bool(close > moment)


def _covering(first: int, last: int) -> pd.Series:
    global _years, _closes  # noqa: PLW0603
    import exchange_calendars

    with _lock:
        if not _years[0] <= first <= last <= _years[1]:
            _years = (min(first, _years[0] or first), max(last, _years[1]))
            start, end = pd.Timestamp(_years[0], 1, 1), pd.Timestamp(_years[1], 12, 31)
            nyse = exchange_calendars.get_calendar("XNYS", start=start - pd.Timedelta(days=10), end=end)
            _closes = nyse.closes.set_axis(nyse.sessions.as_unit("us"))
        return _closes
