"""Prices from Yahoo through yfinance, kept in a Parquet cache.

A warm cache makes no call. A cold or stale one is refreshed with at most 5 tries within 120 seconds; then the cache
is used with its age told, then the fallback if one was asked for, else a DataError. Never called inside a worker: the
driver prepares the data.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from tenacity import Retrying, stop_after_attempt, stop_after_delay, wait_exponential

from sp500.config import DataConfig
from sp500.data.prices import INDEX, STOCKS, Prices, checked
from sp500.data.validation import Tables
from sp500.errors import DataError

FRESH_SECONDS = 24 * 3600
TRIES = 5
DEADLINE_SECONDS = 120
# One try is cut short so that five of them and the pauses between stay within the deadline.
TRY_SECONDS = 20

Fetch = Callable[[list[str], str | None, str | None], pd.DataFrame]


def download(
    config: DataConfig,
    fallback: Callable[[], Prices],
    *,
    fetch: Fetch | None = None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Prices:
    """Validated prices of `config.tickers` (the index if none), adjusted for splits and dividends.

    `fetch(tickers, start, end)` returns yfinance's frame. Raises DataError when nothing can be had.
    """
    tickers = list(config.tickers or (INDEX,))
    if STOCKS in tickers:
        raise DataError("data.tickers: yfinance needs the names of the stocks (for example AAPL MSFT)")
    path = _cache_path(config, tickers)
    age = now() - path.stat().st_mtime if path.exists() else None
    if age is not None and age < FRESH_SECONDS:
        return checked(_tables(pd.read_parquet(path), tickers), config, source="yfinance")
    try:
        frame = _fetch_with_retries(config, tickers, fetch or _yfinance, sleep)
    except (OSError, ValueError, RuntimeError) as error:
        why = f"Yahoo gave no prices of {', '.join(tickers)} in {TRIES} tries ({type(error).__name__}: {error})"
        if age is not None:
            note = f"{why}; these come from a cache that is {age / 86400:.1f} days old."
            return replace(checked(_tables(pd.read_parquet(path), tickers), config, source="yfinance"), notes=(note,))
        if config.fallback == "bundled":
            other = fallback()
            banner = f"NOT the prices asked for: {why}; bundled prices of {', '.join(other.tickers)} were used instead."
            return replace(other, notes=(banner, *other.notes))
        raise DataError(
            f"{why} and no cache at {path}; try later, or --fallback bundled for the prices that work offline"
        ) from error
    prices = checked(_tables(frame, tickers), config, source="yfinance")  # only good prices reach the cache
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    frame.to_parquet(temporary)
    temporary.replace(path)
    return prices


def _fetch_with_retries(
    config: DataConfig, tickers: list[str], fetch: Fetch, sleep: Callable[[float], None]
) -> pd.DataFrame:
    start, end = (day.isoformat() if day else None for day in (config.start, config.end))

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
        reraise=True,
    )
    return retrying(complete)


def _yfinance(tickers: list[str], start: str | None, end: str | None) -> pd.DataFrame:
    """One call; columns (field, ticker), raising what the network raised."""
    import yfinance

    try:
        frame = yfinance.download(
            tickers,
            start=start or "1990-01-01",
            end=end,
            auto_adjust=True,
            progress=False,
            threads=False,
            timeout=TRY_SECONDS,
        )
    except yfinance.exceptions.YFException as error:
        raise ValueError(str(error)) from error
    if frame is None:
        raise ValueError("no answer")
    return pd.DataFrame(frame.rename(columns=str.lower, level=0))


def _tables(frame: pd.DataFrame, tickers: list[str]) -> Tables:
    index = pd.DatetimeIndex(frame.index).tz_localize(None).normalize().as_unit("us")
    fields = [name for name in ("open", "high", "low", "close", "volume") if name in frame.columns.get_level_values(0)]
    return {name: pd.DataFrame(frame[name][tickers].to_numpy(float), index, tickers) for name in fields}


def _cache_path(config: DataConfig, tickers: list[str]) -> Path:
    key = hashlib.sha256(f"{sorted(tickers)}|{config.start}|{config.end}".encode()).hexdigest()[:16]
    return config.cache_dir.expanduser() / f"yfinance-{key}.parquet"
