"""Trading days of the New York Stock Exchange, looked up in a calendar that is built once per process."""

from __future__ import annotations

import threading

import pandas as pd

_lock = threading.Lock()
_years = (0, 0)
_sessions = pd.DatetimeIndex([])


def between(first: pd.Timestamp, last: pd.Timestamp) -> pd.DatetimeIndex:
    """Sessions from `first` to `last`, both included.

    A calendar takes up to a second to build, so it is cached. It is built again only for years that it lacks.
    """
    known = _covering(first.year, last.year)
    return known[int(known.searchsorted(first)) : int(known.searchsorted(last, side="right"))]


def after(day: pd.Timestamp, count: int) -> pd.Timestamp:
    """The session `count` sessions after `day`."""
    known = _covering(day.year, (day + pd.Timedelta(days=2 * count + 10)).year)
    return known[int(known.searchsorted(day, side="right")) + count - 1]


def _covering(first: int, last: int) -> pd.DatetimeIndex:
    global _years, _sessions  # noqa: PLW0603
    import exchange_calendars

    with _lock:
        if not _years[0] <= first <= last <= _years[1]:
            _years = (min(first, _years[0] or first), max(last, _years[1]))
            start, end = pd.Timestamp(_years[0], 1, 1), pd.Timestamp(_years[1], 12, 31)
            nyse = exchange_calendars.get_calendar("XNYS", start=start - pd.Timedelta(days=10), end=end)
            _sessions = nyse.sessions.as_unit("us")
        return _sessions
