"""Prices that a run was trained on, up to their last day: what the page shows, and examples that can be asked."""

from __future__ import annotations

import threading
from typing import Any

from sp500.data.prices import Prices
from sp500.data.sources import load
from sp500.serving.models import Served
from sp500.serving.requests import needed_days, needed_fields
from sp500.training.task import Forecasting

DAYS = 250


class History:
    """Of the run that was asked for last: loading takes a second, or a download."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run = ""
        self._prices: Prices | None = None

    def prices(self, served: Served | None) -> Prices | None:
        """The run's prices with all their dates; None for a run that was trained on none. Raises DataError."""
        predictor = served.predictor if served else None
        if served is None or predictor is None or not isinstance(predictor.task, Forecasting):
            return None
        if not predictor.recipe.state.get("features"):
            return None
        with self._lock:
            if self._run != served.run:
                self._prices = load(predictor.config.data.model_copy(update={"end": None}))
                self._run = served.run
            return self._prices

    def is_loaded(self, served: Served) -> bool:
        """Whether the run's prices are at hand without a wait."""
        return self._run == served.run and self._prices is not None

    def request(self, served: Served | None, ticker: str) -> dict[str, Any] | None:
        """The last days of a ticker as a body for /v1/forecast; None where there is no such ticker."""
        prices = self.prices(served)
        if served is None or prices is None or ticker not in prices.tickers:
            return None
        names, days = needed_fields(served.predictor), max(DAYS, needed_days(served.predictor))
        table = {name: prices.fields[name][ticker].dropna().iloc[-days:] for name in names}
        dates = [f"{day:%Y-%m-%d}" for day in table["close"].index]
        return {"ticker": ticker, "dates": dates, **{name: column.tolist() for name, column in table.items()}}
