"""Volatility of the next days, relative to its exponentially weighted average (EWMA).

The target is log volatility minus log EWMA, and the inputs are in units of EWMA volatility, so that training starts
from EWMA times a constant. Scores and forecasts are of log volatility itself. Naive forecasts are fitted on the
training windows: the mean, EWMA and a HAR (Corsi 2009, J. Financial Econometrics 7) by least squares in logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.columns import Hooks
from sp500.data.prices import Prices
from sp500.data.validation import Tables
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.formatting import percent
from sp500.runs.results import Metrics
from sp500.tasks import prices as price_tasks
from sp500.tasks import realized
from sp500.tasks.prices import PriceTask
from sp500.tasks.settings import VolatilityConfig

RIVALS: dict[str, tuple[str, ...]] = {"mean": (), "ewma": ("ewma",), "har": ("day", "week", "month")}
"""Columns of each naive forecast that is fitted; all also have a constant."""
GARCH = ("garch", "gjr")
DAYS = {"day": 1, "week": 5, "month": 22}
MOST_FLOORED = 0.05
"""Share of one-day targets from closes at the floor, above which they say more of rounding than of volatility."""


@dataclass(frozen=True)
class Volatility(PriceTask):
    """Log volatility of a day, as the root of the mean variance over the horizon."""

    unit: ClassVar[str] = "log volatility of a day"

    def features(self, prices: Prices) -> Tables:
        """Return the columns in units of EWMA volatility: shock, size, averages of volatility, momentum."""
        variance, floor = self._measure(prices)
        averaged = realized.average(variance, realized.EWMA_WEIGHTS)
        level, log = realized.log_volatility(averaged, floor), realized.take_log(prices.close)
        volatility = level.apply(np.exp)
        averages = {"week": DAYS["week"], "month": DAYS["month"], "year": realized.YEAR}
        return {
            # The day is part of the average, which bounds both at 1 / sqrt(1 - DECAY) = 4.1.
            "shock": log.diff() / volatility,
            "size": variance**0.5 / volatility,
            **{
                name: realized.log_volatility(realized.average_days(variance, days), floor) - level
                for name, days in averages.items()
            },
            "momentum_5": log.diff(5) / volatility / np.sqrt(5),
            "momentum_22": log.diff(22) / volatility / np.sqrt(22),
        }

    def target(self, prices: Prices, config: RunConfig) -> pd.DataFrame:
        """Return 0.5 log(mean variance over the horizon), at least that of the floor, minus log EWMA volatility."""
        variance, floor = self._measure(prices)
        ahead = realized.average_days(variance, config.data.horizon).shift(-config.data.horizon)
        averaged = realized.average(variance, realized.EWMA_WEIGHTS)
        return realized.log_volatility(ahead, floor) - realized.log_volatility(averaged, floor)

    def hooks(self, config: RunConfig) -> Hooks:
        """Return what this task puts in place of the pipeline's own steps."""
        closes = self._settings.measure == "closes"
        columns = ["close"] if closes else ["close", "open", "high", "low", "volume"]
        needs = {"columns": columns, "across": [], "history": config.data.window + realized.YEAR}
        own = type(self).features is not Volatility.features
        return replace(
            super().hooks(config), review=self._review, needs=None if own else needs, known=self._known, fit=_fit
        )

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns date, ticker, forecast, target: log volatility; and each naive forecast."""
        naive = {f"naive_{name}": values for name, values in self.list_naive(windows, dataset).items()}
        return super().predictions(output, windows, dataset).assign(**naive)

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return errors of log volatility per split, QLIKE of the test, and the improvement over each naive forecast.

        QLIKE needs validation dates: on them each forecast, the model's and the naive ones, is made unbiased. Errors on
        the training dates, as the rivals have them, would be too small for a network, which is fitted more closely.
        """
        scores, test = super().judge(outputs, dataset), dataset.test
        target, days = self.find_truth(test, dataset), price_tasks.list_days(test)
        forecasts = {"": self._restore(outputs["test"], test, dataset), **self.list_naive(test, dataset)}
        losses = {name: {"mse": (forecast - target) ** 2} for name, forecast in forecasts.items()}
        if dataset.valid is not None:
            known = self.find_truth(dataset.valid, dataset)
            valid = {
                "": self._restore(outputs["valid"], dataset.valid, dataset),
                **self.list_naive(dataset.valid, dataset),
            }
            for name, forecast in forecasts.items():
                losses[name]["qlike"] = metrics.unbiased_qlike(target, forecast, known, valid[name])
                row = scores["naive"][name] if name else scores["test"]
                row["qlike"] = float(losses[name]["qlike"].mean())
        scores["test"]["against"] = {
            name: {
                metric: metrics.improvement(losses[""][metric], values, days, horizon=self.config.data.horizon)
                for metric, values in losses[name].items()
            }
            for name in forecasts
            if name
        }
        return scores

    def answer(
        self, output: np.ndarray, fields: Mapping[str, pd.Series], dataset: Dataset
    ) -> tuple[float, dict[str, float]]:
        """Return the forecast after the prices of a request, and the naive forecasts that need no fit to them."""
        prices = Prices({name: column.to_frame("ticker") for name, column in fields.items()}, "the request")
        known = {name: float(table.to_numpy()[-1, 0]) for name, table in self._average(prices).items()}
        naive = {
            name: weights[0] + sum(weight * known[column] for column, weight in zip(columns, weights[1:], strict=True))
            for name, (columns, weights) in dataset.state["rivals"].items()
            if all(column in known for column in columns)
        }
        return float(self.forecast(output, dataset)[0]) + known["ewma"], {"last": known["last"], **naive}

    @property
    def _settings(self) -> VolatilityConfig:
        return self.config.section(VolatilityConfig)

    def _measure(self, prices: Prices) -> tuple[pd.DataFrame, pd.DataFrame]:
        return realized.measure_variance(prices, self._settings.measure), realized.find_floor(prices.close)

    def _average(self, prices: Prices) -> Tables:
        """Return log volatilities by name: EWMA, of the last day, week and month, and of the last `horizon` days."""
        variance, floor = self._measure(prices)
        averages = {"ewma": realized.average(variance, realized.EWMA_WEIGHTS)}
        averages |= {
            name: realized.average_days(variance, days)
            for name, days in {**DAYS, "last": self.config.data.horizon}.items()
        }
        return {name: realized.log_volatility(table, floor) for name, table in averages.items()}

    def _known(self, prices: Prices) -> Tables:
        tables = self._average(prices)
        if not self._settings.garch:
            return tables
        from sp500.tasks import garch  # of an extra

        for name in GARCH:
            forecasts = garch.forecast(prices.close, self.config.data.horizon, asymmetric=name == "gjr")
            tables[name] = forecasts.fillna(tables["ewma"])
        return tables

    def _review(self, prices: Prices) -> Prices:
        """Add the share of targets at the floor to the notes. Raises DataError where it is too large."""
        horizon, measure = self.config.data.horizon, self._settings.measure
        variance, floor = self._measure(prices)
        ahead = realized.average_days(variance, horizon).shift(-horizon).to_numpy(float)
        known = np.isfinite(ahead) & np.isfinite(floor.to_numpy(float))
        share = float((ahead <= floor.to_numpy(float))[known].mean()) if known.any() else 0.0
        if horizon == 1 and measure == "closes" and share > MOST_FLOORED:
            raise DataError(
                f"coarse_prices: {percent(share)} of the one-day moves in {prices.source} are below half of the "
                f"smallest step of the prices, above {percent(MOST_FLOORED, 0)}: use data.horizon 5, a later "
                "data.start, or volatility.measure parkinson"
            )
        note = f"{percent(share)} of the targets are below what rounded prices can show, and have its floor."
        return replace(prices, notes=(*prices.notes, note))

    def _restore(self, output: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        return np.asarray(self.forecast(output, dataset) + _column(part, "ewma"))

    def find_truth(self, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return log volatility [window]."""
        return np.asarray(_column(part, "target") + _column(part, "ewma"))

    def invert_forecast(self, forecast: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return the output [window, 1] of the test that would give these log volatilities."""
        return super().invert_forecast(forecast - _column(dataset.test, "ewma"), dataset)

    def list_naive(self, part: Windows, dataset: Dataset) -> dict[str, np.ndarray]:
        """Return the naive forecasts of a part by name: log volatility."""
        fitted = {
            name: weights[0] + sum(w * _column(part, column) for column, w in zip(columns, weights[1:], strict=True))
            for name, (columns, weights) in dataset.state["rivals"].items()
        }
        return {"last": _column(part, "last"), **{name: np.full(len(part), 0.0) + row for name, row in fitted.items()}}

    def _score(self, forecast: np.ndarray, target: np.ndarray, part: Windows, dataset: Dataset) -> Metrics:
        # The sign of a log volatility says nothing.
        without = ("directional_accuracy", "information_coefficient", "daily_ic", "daily_ic_t")
        scores = super()._score(forecast, target, part, dataset)
        return {name: value for name, value in scores.items() if name not in without}


def _column(part: Windows, name: str) -> np.ndarray:
    assert part.index is not None
    column: np.ndarray = part.index[name].to_numpy(np.float64)
    return column


def _fit(rows: pd.DataFrame) -> dict[str, Any]:
    """Return columns and weights (a constant first) of each naive forecast, by least squares on the training rows."""
    target = (rows["target"] + rows["ewma"]).to_numpy()
    fitted = {}
    for name, columns in {**RIVALS, **{name: (name,) for name in GARCH if name in rows}}.items():
        matrix = np.column_stack([np.ones(len(rows)), *(rows[column] for column in columns)])
        fitted[name] = [list(columns), np.linalg.lstsq(matrix, target, rcond=None)[0].tolist()]
    return {"rivals": fitted}
