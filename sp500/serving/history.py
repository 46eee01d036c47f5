"""Prices that a run was trained on, up to their last day: what the page shows, and examples that can be asked."""

from __future__ import annotations

import logging
import threading
import time

from sp500.data.prices import Prices
from sp500.data.sources import load
from sp500.errors import SP500Error
from sp500.serving.models import Served
from sp500.serving.requests import input_fields, list_own_columns, minimum_days
from sp500.training.task import Forecasting

log = logging.getLogger(__name__)

DAYS = 250
FRESH_SECONDS = 6 * 3600.0
"""Age at which prices are loaded again: a server runs for weeks, and scores need the days since."""


class History:
    """The prices of one run, the last one requested: loading them takes a second, or a download."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run = ""
        self._loaded = 0.0
        self._prices: Prices | None = None

    def prices(self, served: Served | None) -> Prices | None:
        """Return the run's prices with all their dates; None for a run that was trained on none. Raises DataError."""
        predictor = served.predictor if served else None
        if served is None or predictor is None or not isinstance(predictor.task, Forecasting):
            return None
        if not predictor.recipe.state.get("features"):
            return None
        with self._lock:
            if self._run != served.run or time.monotonic() - self._loaded > FRESH_SECONDS:
                self._load(served)
            return self._prices

    def _load(self, served: Served) -> None:
        """Read the prices again; if that fails, those of the same run stay until the next time."""
        known = self._run == served.run and self._prices is not None
        try:
            own = list_own_columns(served.predictor)
            self._prices = load(served.predictor.config.data.model_copy(update={"end": None}), columns=own)
        except SP500Error as error:
            if not known:
                raise
            log.warning("the page keeps its prices: %s", error)
        self._run, self._loaded = served.run, time.monotonic()

    def is_loaded(self, served: Served) -> bool:
        """Return whether the run's prices are available without a wait."""
        return self._run == served.run and self._prices is not None

    def request(self, served: Served | None, ticker: str) -> dict[str, object] | None:
        """Return the last days of a ticker as a body for /v1/forecast; None if there is no such ticker."""
        prices = self.prices(served)
        if served is None or prices is None or ticker not in prices.tickers:
            return None
        names, days = input_fields(served.predictor), max(DAYS, minimum_days(served.predictor))
        close = prices.close[ticker].dropna().iloc[-days:]
        table = {name: prices[name][ticker].loc[close.index] for name in names}
        dates = [f"{day:%Y-%m-%d}" for day in table["close"].index]
        moves = [move.rpartition(":") for move in served.predictor.config.data.real_moves]
        real = [day for whose, _, day in moves if whose == ticker and day in dates]
        body: dict[str, object] = {
            "ticker": ticker,
            "dates": dates,
            **{name: column.tolist() for name, column in table.items() if name in prices.fields},
        }
        if own := {name: column.tolist() for name, column in table.items() if name in prices.columns}:
            body["columns"] = own
        return body | ({"real_moves": real} if real else {})
