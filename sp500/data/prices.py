"""Prices: a validated, read-only table of date x ticker.

All sources end in the same type. No code past this module sees a fault: it was repaired by a stated rule and is listed
in `faults`, or loading ended with a DataError.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pandas as pd

from sp500.config import DataConfig
from sp500.data.validation import Fault, Tables, validate
from sp500.errors import DataError

INDEX = "^GSPC"
STOCKS = "stocks"


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


def validate_prices(
    raw: Tables, config: DataConfig, *, source: str, notes: tuple[str, ...] = (), seen: datetime | None = None
) -> Prices:
    """Return validated prices from raw tables that were read at `seen` (default: now), cut to the requested dates."""
    clean, faults = validate(raw, real_moves=config.real_moves, seen=seen, start=config.start, end=config.end)
    return Prices(clean, source, tuple(faults), notes)


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
