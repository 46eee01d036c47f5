"""Sources of data. The bundled prices, Yahoo and files end in validated `Prices`; `arrays` reads windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from sp500.config import DataConfig
from sp500.data import sessions
from sp500.data.prices import INDEX, Prices, fit_columns, select, validate_prices
from sp500.data.sources import yahoo
from sp500.data.sources.files import read_table
from sp500.data.sources.headings import FIELDS
from sp500.errors import DataError

STOCKS_START = pd.Timestamp("1996-01-01")
INDEX_NOTE = (
    f"{INDEX} is a price index: its returns leave out dividends, about 2% a year. An investor who held it earned more "
    "than buy-and-hold in the report."
)
BUNDLED_NOTES = (
    "The bundled stocks are 20 companies that still traded in 2022, most of them large: the choice is biased "
    "towards survivors, and their average return is higher than an investor could have known to pick.",
    "Bundled prices are adjusted for splits and dividends and rounded to a tenth of a cent, which is coarse for old "
    "prices; stocks therefore start in 1996 unless data.start says otherwise.",
)

BUNDLE = Path(__file__).parent / "bundled" / "closes.npz"
log = logging.getLogger(__name__)
Download = Callable[[DataConfig], Prices]


def load(
    config: DataConfig,
    now: datetime | None = None,
    download: Download | None = None,
    *,
    columns: Collection[str] | None = (),
) -> Prices:
    """Load the prices of `config.source`, cut to its tickers and dates, and validate them.

    `columns` are further columns of a file of the user's that are read; None: all that hold numbers. `now` bounds the
    dates (default: the clock's time); `download` gets prices from Yahoo (default: yfinance). Raises DataError naming
    rule, ticker and date.
    """
    if config.source in {"bundled", "yfinance"} and columns:
        raise DataError(f"data.features: {config.source} has no column {next(iter(columns))}; a file of yours may have")
    if config.source == "bundled":
        return _from_bundle(config, now)
    if config.source == "yfinance":
        return _from_yahoo(config, now, download or yahoo.download)
    return _from_file(config, now, columns)


def _from_bundle(config: DataConfig, now: datetime | None) -> Prices:
    """Load the S&P 500 index and 20 of its stocks, 1990 to 2022, as `bundled/SOURCE.md` describes them."""
    raw = select({"close": _read_bundle()}, config.tickers or (INDEX,), "bundled")
    names = list(raw["close"].columns)
    notes = (INDEX_NOTE,) if INDEX in names else ()
    if names != [INDEX]:
        notes = (*notes, *BUNDLED_NOTES)
        if config.start is None:
            raw = {name: frame.loc[STOCKS_START:] for name, frame in raw.items()}
    return validate_prices(raw, config, source="bundled", notes=notes, seen=now)


def _from_yahoo(config: DataConfig, now: datetime | None, download: Download) -> Prices:
    """Load Yahoo's prices. With data.fallback bundled and no answer: the bundled prices, with a note about it."""
    try:
        return download(config)
    except yahoo.NoAnswer as error:
        if config.fallback != "bundled":
            raise
        log.warning("NO PRICES FROM YAHOO: %s; going on with bundled prices", error.reason)
        other = _from_bundle(config, now)
        tickers = ", ".join(other.tickers)
        banner = f"NOT the prices asked for: {error.reason}; bundled prices of {tickers} were used instead."
        return replace(other, notes=(banner, *other.notes))


def _from_file(config: DataConfig, now: datetime | None, columns: Collection[str] | None) -> Prices:
    path = Path(config.source).expanduser()
    today = pd.Timestamp(now or datetime.now(UTC)).tz_localize(None).normalize()
    raw, repaired = read_table(path, today, columns)
    raw = select(raw, config.tickers or tuple(raw["close"].columns), config.source)
    own = {name: raw.pop(name) for name in [*raw] if name not in FIELDS}
    try:
        prices = validate_prices(raw, config, source=config.source, seen=_seen(path, raw["close"].index[-1], now))
    except DataError as error:
        raise DataError(f"{config.source}: {error}") from None
    fitted, carried = fit_columns(own, prices.close)
    return replace(prices, faults=(*repaired, *prices.faults, *carried), columns=fitted)


def _seen(path: Path, last: pd.Timestamp, now: datetime | None) -> datetime | None:
    """Return the time a file was written if that was on its last day, whose session may have been open; else `now`."""
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return written if written.astimezone(sessions.NEW_YORK).date() == last.date() else now


def _read_bundle() -> pd.DataFrame:
    """Read the closing prices [date, ticker] in dollars."""
    with np.load(BUNDLE) as arrays:
        dates = pd.DatetimeIndex(arrays["dates"].astype("datetime64[us]"), name="Date")
        return pd.DataFrame(arrays["thousandths"] / 1000, index=dates, columns=list(arrays["tickers"]))
