"""Prices: a validated, read-only table of date x ticker.

All sources end in the same type. No code past this module sees a fault: it was repaired by a stated rule and is listed
in `faults`, or loading ended with a DataError.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from sp500.config import DataConfig
from sp500.data.validation import Fault, Tables, validate
from sp500.errors import DataError

INDEX = "^GSPC"
STOCKS = "stocks"
STOCKS_START = pd.Timestamp("1996-01-01")

INDEX_NOTE = (
    f"{INDEX} is a price index: its returns leave out dividends, about 2 % a year. An investor who held it earned more "
    "than buy-and-hold in the report."
)
BUNDLED_NOTES = (
    "The bundled stocks are 20 companies that were still large members of the index in 2022: the choice is biased "
    "towards survivors, and their average return is higher than an investor could have known to pick.",
    "Bundled prices are adjusted for splits and dividends and rounded to a tenth of a cent, which is coarse for old "
    "prices; stocks therefore start in 1996 unless data.start says otherwise.",
)


@dataclass(frozen=True)
class Prices:
    """Daily prices that passed every check.

    Each of `fields` is a table [date, ticker] over NYSE sessions: `close` always, `open`, `high`, `low`, `volume` where
    the source has them. NaN only before a ticker's first and after its last date.
    """

    fields: Tables
    source: str
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", {name: _frozen(frame) for name, frame in self.fields.items()})

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
        for name in sorted(self.fields):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.fields[name].to_numpy(np.float64)).tobytes())
        return digest.hexdigest()


def load(config: DataConfig, today: date | None = None) -> Prices:
    """Prices of `config.source`, cut to its tickers and dates, validated.

    `today` bounds the dates (default: the clock's). Raises DataError naming rule, ticker and date.
    """
    if config.source == "bundled":
        raw, notes = _bundled(config)
    elif config.source == "yfinance":
        from sp500.data.yahoo import download

        return download(config, fallback=lambda: load(config.model_copy(update={"source": "bundled"}), today))
    else:
        from sp500.data.files import read_table

        raw, repaired = read_table(Path(config.source).expanduser())
        raw = select(raw, config.tickers or tuple(raw["close"].columns), config.source)
        try:
            prices = checked(raw, config, source=config.source, today=today)
        except DataError as error:
            raise DataError(f"{config.source}: {error}") from None
        return replace(prices, faults=(*repaired, *prices.faults))
    return checked(raw, config, source="bundled", notes=notes, today=today)


def checked(
    raw: Tables, config: DataConfig, *, source: str, notes: tuple[str, ...] = (), today: date | None = None
) -> Prices:
    """Validated prices from raw tables, cut to the dates asked for."""
    clean, faults = validate(raw, real_moves=config.real_moves, today=today, start=config.start, end=config.end)
    return Prices(clean, source, tuple(faults), notes)


def select(raw: Tables, wanted: tuple[str, ...], source: str) -> Tables:
    """Columns of the tickers asked for, `stocks` standing for all but the index."""
    have = [str(name) for name in raw["close"].columns]
    names: list[str] = []
    for name in wanted:
        names += [other for other in have if other != INDEX] if name == STOCKS else [name]
    missing = [name for name in names if name not in have]
    if missing or not names:
        raise DataError(f"data.tickers: {source} has no {', '.join(missing) or 'stocks'}; it has {', '.join(have)}")
    unique = list(dict.fromkeys(names))
    return {name: frame[unique] for name, frame in raw.items()}


def _bundled(config: DataConfig) -> tuple[Tables, tuple[str, ...]]:
    """S&P 500 index and 20 of its stocks, 1990 to 2022, as they come with skfolio."""
    index = _packaged("sp500_index").rename(columns={"SP500": INDEX})
    raw = select({"close": index.join(_packaged("sp500_dataset"))}, config.tickers or (INDEX,), "bundled")
    index_notes = (INDEX_NOTE,) if INDEX in raw["close"].columns else ()
    if list(raw["close"].columns) == [INDEX]:
        return raw, index_notes
    if config.start is None:
        raw = {name: frame.loc[STOCKS_START:] for name, frame in raw.items()}
    return raw, (*index_notes, *BUNDLED_NOTES)


def _packaged(name: str) -> pd.DataFrame:
    """A table [date, ticker] of those that lie in skfolio.

    Read where they lie: to ask the package itself imports scikit-learn and half of scipy, over a second in every run.
    """
    found = find_spec("skfolio")
    assert found is not None, "pyproject.toml requires skfolio"
    folder = Path(str(found.origin)).parent / "datasets" / "data"
    return pd.read_csv(folder / f"{name}.csv.gz", index_col=0, parse_dates=True)


def _frozen(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that nobody can write to, and that does not change with the table it came from."""
    values = frame.to_numpy(np.float64, copy=True)
    values.flags.writeable = False
    return pd.DataFrame(values, index=frame.index, columns=frame.columns, copy=False)
