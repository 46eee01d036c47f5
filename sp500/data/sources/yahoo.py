"""Prices from Yahoo through yfinance, kept in a Parquet cache.

A warm cache makes no call. A cold or stale one is refreshed with at most 5 tries within 120 seconds; then the cache
is used with its age noted, else the error is `NoAnswer`. Never called inside a worker: the driver prepares the data.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from sp500.config import DataConfig
from sp500.data.prices import INDEX, STOCKS, Prices, validate_prices
from sp500.data.sources.files import in_order, tables_of
from sp500.data.sources.headings import FIELDS
from sp500.data.validation import Fault, refuse
from sp500.errors import ConfigError, DataError, extra
from sp500.machine.disk import write_atomic

FRESH_SECONDS = 24 * 3600
TRIES = 5
DEADLINE_SECONDS = 120
# One try is cut short so that five of them and the pauses between stay within the deadline.
TRY_SECONDS = 20

NAME = re.compile(r"\^?[A-Z0-9.=&_-]+")
SHARE_CLASS = re.compile(r"([A-Z]+)[./ ]([ABC])")
"""BRK.B: no exchange of Yahoo's has a suffix of these letters."""

log = logging.getLogger(__name__)
Fetch = Callable[[list[str], str | None, str | None], pd.DataFrame]


class NoAnswer(DataError):
    """Neither Yahoo nor the cache has the prices; `reason` says why."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(
            f"{reason} and no cache at {path}; try later, or --fallback bundled for the prices that work offline"
        )
        self.reason = reason


def download(
    config: DataConfig,
    *,
    fetch: Fetch | None = None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Prices:
    """Download and validate prices of `config.tickers` (the index if none), adjusted for splits and dividends.

    `fetch(tickers, start, end)` returns yfinance's frame. Raises NoAnswer when there are none.
    """
    tickers = _spell(config.tickers or (INDEX,))
    path = _cache_path(config, tickers)
    cached = _read_cache(path)
    started = now()
    age = started - path.stat().st_mtime if cached is not None else None
    if cached is not None and age is not None and age < FRESH_SECONDS:
        return _prices(cached, tickers, config, started - age)
    try:
        frame = _fetch_with_retries(config, tickers, fetch or _yfinance, sleep)
    except (OSError, ValueError, RuntimeError) as error:
        why = f"Yahoo gave no prices of {', '.join(tickers)} in {TRIES} tries ({type(error).__name__}: {error})"
        if cached is not None and age is not None:
            note = f"{why}; these come from a cache that is {age / 86400:.1f} days old."
            return replace(_prices(cached, tickers, config, started - age), notes=(note,))
        raise NoAnswer(why, path) from error
    prices = _prices(frame, tickers, config, started)  # only good prices reach the cache
    _keep(frame, path, started)
    return prices


def _spell(tickers: Sequence[str]) -> list[str]:
    """Return the tickers as Yahoo writes them, each once. Raises DataError for what cannot be one of its names."""
    if STOCKS in tickers:
        raise DataError("data.tickers: yfinance needs the names of the stocks (for example AAPL MSFT)")
    names = list(dict.fromkeys(ticker.strip().upper() for ticker in tickers))
    for name in names:
        if found := SHARE_CLASS.fullmatch(name):
            raise DataError(f"data.tickers: Yahoo writes a class of shares with a dash: {'-'.join(found.groups())}")
        if not NAME.fullmatch(name):
            raise DataError(f"data.tickers: {name!r} is no name of Yahoo's; separate names by blanks: AAPL ^GSPC")
    return names


def _keep(frame: pd.DataFrame, path: Path, seen: float) -> None:
    """Write the frame to the cache. A failure is only a warning, since the prices themselves are good."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, frame.to_parquet())
        os.utime(path, (seen, seen))  # a session that was open then stays unfinished
    except OSError as error:
        log.warning("the prices are not kept for the next run: %s (set data.cache_dir to a folder to write in)", error)


def _read_cache(path: Path) -> pd.DataFrame | None:
    """Read the frame kept at `path`; None if there is none or it is damaged."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):  # pyarrow's ArrowInvalid is a ValueError
        return None


def _prices(frame: pd.DataFrame, tickers: list[str], config: DataConfig, seen: float) -> Prices:
    """Return validated prices of yfinance's frame as it was at `seen`, seconds since 1970, its rows put in order."""
    index = pd.DatetimeIndex(frame.index).tz_localize(None).normalize().as_unit("us")
    flat = frame.set_axis(index.rename("date"), axis=0).loc[:, pd.IndexSlice[:, tickers]]
    long = flat.rename_axis(columns=["field", "ticker"]).stack("ticker").reset_index()
    long = long[[name for name in ("date", "ticker", *FIELDS) if name in long.columns]]
    long, twice = _drop_older(long)
    long, more = in_order(long)
    faults = twice + more
    refuse(faults)
    tables = {name: table[tickers] for name, table in tables_of(long).items()}
    prices = validate_prices(tables, config, source="yfinance", seen=datetime.fromtimestamp(seen, UTC))
    return replace(prices, faults=(*faults, *prices.faults))


def _drop_older(long: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Drop the first of two rows that differ on the last day: Yahoo adds the price of now to a day it has."""
    again = long.duplicated(["date", "ticker"], keep="last") & ~long.duplicated(keep=False)
    older = again & (long["date"] == long["date"].max())
    detail = "Yahoo's answer has this day twice; the later row kept"
    faults = [
        Fault("duplicate", ticker, f"{day:%Y-%m-%d}", detail, repaired=True)
        for ticker, day in long.loc[older, ["ticker", "date"]].itertuples(index=False)
    ]
    return long[~older], faults


def _fetch_with_retries(
    config: DataConfig, tickers: list[str], fetch: Fetch, sleep: Callable[[float], None]
) -> pd.DataFrame:
    with extra("yahoo"):
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_exponential

    start = config.start.isoformat() if config.start else None
    end = (config.end + timedelta(days=1)).isoformat() if config.end else None  # Yahoo leaves the last day out

    def complete() -> pd.DataFrame:
        frame = fetch(tickers, start, end)
        have = set(frame.columns.get_level_values(-1)) if len(frame) else set()
        if missing := [
            name for name in tickers if name not in have or frame.xs(name, axis=1, level=-1).isna().to_numpy().all()
        ]:
            raise ValueError(f"the answer holds no prices of {', '.join(missing)}")
        return frame

    retrying = Retrying(
        stop=stop_after_attempt(TRIES) | stop_after_delay(DEADLINE_SECONDS - TRY_SECONDS),
        wait=wait_exponential(multiplier=1, max=8),
        sleep=sleep,
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    return retrying(complete)


def _may_pass(error: BaseException) -> bool:
    """Return whether another try may help: not if the package is not installed, nor after Ctrl-C."""
    return isinstance(error, Exception) and not isinstance(error, ConfigError)


def _yfinance(tickers: list[str], start: str | None, end: str | None) -> pd.DataFrame:
    """Call yfinance once; columns (field, ticker). Errors of the network pass through."""
    with extra("yahoo"):
        import yfinance

    try:
        frame = yfinance.download(
            tickers,
            start=start or "1990-01-01",
            end=end,
            auto_adjust=True,
            progress=False,
            threads=False,
            timeout=max(TRY_SECONDS // len(tickers), 2),  # tickers load one after another
        )
    except yfinance.exceptions.YFException as error:
        raise ValueError(str(error)) from error
    if frame is None:
        raise ValueError("no answer")
    return pd.DataFrame(frame.rename(columns=str.lower, level=0))


def _cache_path(config: DataConfig, tickers: list[str]) -> Path:
    key = hashlib.sha256(f"{sorted(tickers)}|{config.start}|{config.end}".encode()).hexdigest()[:16]
    return config.cache_dir.expanduser() / f"yfinance-{key}.parquet"
