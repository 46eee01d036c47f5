"""Tasks of prices: what is forecast for the days after the last price, and how it is judged.

A subclass overrides one thing and keeps the rest: `features`, `target` or `loss`. The built-in tasks go through the
same hooks. Every forecast is compared with naive ones under the loss that the model was trained by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sp500 import metrics
from sp500.breakdown import break_down
from sp500.config import RunConfig
from sp500.data import pipeline
from sp500.data.columns import Hooks
from sp500.data.prices import Prices
from sp500.data.sources import arrays
from sp500.data.windows import Dataset, Windows
from sp500.errors import ConfigError, DataError
from sp500.formatting import reference_name
from sp500.plugins import source
from sp500.runs.details import Breakdown
from sp500.runs.results import Metrics
from sp500.tasks import losses
from sp500.training.task import Task

INDEX = {"date", "ticker", "return", "previous"}
"""Columns of the index of windows of prices."""


@dataclass(frozen=True)
class PriceTask(Task):
    """A number for each ticker and date: by default the log return over the horizon, by its squared error.

    features: names of built-in columns and of columns of the file, or a method `features(self, prices)` that computes
    them; history: rows before the last day that such a method needs, where that is more than a window and 60; traded:
    whether the sign of a forecast is a position that can be held, by default where it is of a return.
    """

    unit: ClassVar[str] = "log return"
    features: ClassVar[Any] = ()
    history: ClassVar[int] = 0
    traded: ClassVar[bool | None] = None
    direction: ClassVar[bool] = False
    """Whether the model is trained on the sign of the target."""
    config: RunConfig
    made_by_workers: bool = False

    def target(self, prices: Prices, config: RunConfig) -> pd.DataFrame:
        """Return what is forecast [date, ticker]: the log return over `config.data.horizon` sessions.

        It may look ahead by so many sessions and no further. NaN where it is not known.
        """
        log = prices.close.apply(np.log)
        ahead: pd.DataFrame = log.shift(-config.data.horizon) - log
        return ahead

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the loss that `train.loss` names: by default squared errors."""
        return losses.sum_loss(self.config.train, output.squeeze(-1), target)

    def hooks(self, config: RunConfig) -> Hooks:
        """Return what this task puts in place of the pipeline's own steps. Raises ConfigError."""
        computed = callable(self.features)
        if (computed or isinstance(self.features, str)) and (config.data.features or not computed):
            task = reference_name(config.task)
            raise ConfigError(
                f"task {task} computes its features; leave out data.features"
                if computed
                else f"task {task}: features is the text {self.features!r}; write ({self.features!r},)"
            )
        return Hooks(
            () if computed else config.data.features or tuple(self.features),
            self.features if computed else None,
            (lambda prices: self.target(prices, config)) if self._has_own_target else None,
            None if self.direction or self._key == losses.NAMES["mse"] else self._find_constant,
            self.history,
        )

    def prepare(self, config: RunConfig) -> Dataset:
        """Return windows of prices, or of an npz file."""
        if not config.data.npz_path:
            return self.read(config).dataset(config.train.dtype)
        hooks = self.hooks(config)
        if hooks.names or hooks.features or hooks.target:
            raise ConfigError("data.npz_path has windows, so that the task's features and target are not used")
        dataset = arrays.dataset(config.data, config.train.dtype, direction=self.direction)
        return replace(dataset, naive_output=hooks.constant(dataset.train.targets)) if hooks.constant else dataset

    def read(self, config: RunConfig) -> pipeline.Prepared:
        """Return the prices, cut and fitted. Raises DataError, also for any error of the user's code, with its line."""
        with source.blame(config.own_task):
            return pipeline.prepare(config.data, direction=self.direction, hooks=self.hooks(config))

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return errors, direction and trading per split; the improvement over the best naive forecast on the test."""
        parts = dict(splits(dataset))
        forecasts = {name: self._restore(outputs[name], part, dataset) for name, part in parts.items()}
        scores = {
            name: self._score(forecasts[name], self.find_truth(part, dataset), part, dataset)
            | (buy_and_hold(part, self.config) if self._is_traded else {})
            for name, part in parts.items()
        }
        if self._is_traded:
            scores["test"] |= growth(np.sign(forecasts["test"]), dataset.test, self.config)
        target = self.find_truth(dataset.test, dataset)
        rivals = self.list_naive(dataset.test, dataset)
        naive = {name: self._score(forecast, target, dataset.test, dataset) for name, forecast in rivals.items()}
        best = metrics.best_naive(naive, self._key, largest=False)
        model, days = self._losses(forecasts["test"], target, dataset.test, dataset)
        rival, _ = self._losses(rivals[best], target, dataset.test, dataset)
        if self._has_own_loss and rival.sum() < 0:
            raise DataError(
                f"the loss of the naive forecast ({best}) is {rival.sum():.3g} in all, and an improvement is a share "
                "of it: write a loss that is never negative, or a judge"
            )
        scores["test"]["improvement"] = {
            "over": best,
            "metric": self._key,
            **metrics.improvement(model, rival, days, horizon=self.config.data.horizon),
        }
        return {**scores, "naive": naive}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns date, ticker (if known), forecast, target: log returns, or what the target is."""
        forecast = self._restore(output, windows, dataset)
        return label_rows(windows, {"forecast": forecast, "target": self.find_truth(windows, dataset)})

    def encode(self, fields: Mapping[str, pd.Series], dataset: Dataset) -> np.ndarray:
        """Return X of the last days, as training had them."""
        with source.blame(self.config.own_task):
            return pipeline.last_window(fields, dataset, self.hooks(self.config))

    def encode_tickers(self, prices: Prices, tickers: Sequence[str], dataset: Dataset) -> np.ndarray:
        """Return X of the last days of some of the tickers of these prices, as training had them."""
        with source.blame(self.config.own_task):
            return pipeline.last_windows(prices, tickers, dataset, self.hooks(self.config))

    def forecast(self, output: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return log returns, or what the target is."""
        return output[:, 0].astype(np.float64) * dataset.target_scale

    def invert_forecast(self, forecast: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return the output [window, 1] that `forecast` would give these forecasts for."""
        return np.asarray(forecast[:, None] / dataset.target_scale)

    def naive(self, close: pd.Series, dataset: Dataset) -> dict[str, float]:
        """Return the naive forecasts: zero, the best constant, the last return over the horizon."""
        constant = dataset.naive_output * dataset.target_scale
        if self._has_own_target:
            return {self._constant: constant}
        return {"zero": 0.0, self._constant: constant, "previous": last_return(close, self.config.data.horizon)}

    def break_down(self, output: np.ndarray, dataset: Dataset, scores: Metrics) -> Breakdown | None:
        """Return the details of the test by ticker, year, portfolio and size of the forecast; None without dates.

        `scores`: what `judge` found on the test, whose naive forecast is compared with.
        """
        test = dataset.test
        if test.index is None or output.shape[1:] != (1,) or not {*test.index} >= INDEX:
            return None  # arrays, or a prepare or a model of the user's own with other windows or outputs
        forecast, rivals = self._restore(output, test, dataset), self.list_naive(test, dataset)
        over = scores.get("improvement", {}).get("over")
        if over not in rivals:  # a judge of the user's own compares with none, or with another
            over = min(rivals, key=lambda name: self.compute_losses(rivals[name], test, dataset).mean())
        table = test.index[["date", "ticker", "return"]].assign(
            forecast=forecast,
            target=self.find_truth(test, dataset),
            loss=self.compute_losses(forecast, test, dataset),
            naive=self.compute_losses(rivals[over], test, dataset),
            right=self.find_hits(forecast, test, dataset),
        )
        return break_down(
            table,
            self.take_position(forecast) if self._is_traded else None,
            metric=self.metric,
            over=over,
            cost_bps=self.config.eval.cost_bps,
            horizon=self.config.data.horizon,
        )

    def compute_losses(self, forecast: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return the loss [window] by which the verdict is."""
        target, scale = self.find_truth(part, dataset), dataset.target_scale
        if not self._has_own_loss:
            return losses.compute_losses(self.config.train, forecast, target, scale)
        output, y = (torch.from_numpy(values / scale)[:, None] for values in (forecast, target))
        return np.array([float(self.loss(row[None], goal)) for row, goal in zip(output, y, strict=True)])

    def find_truth(self, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return what came [window], as forecasts are of it."""
        return truth(part, dataset)

    def find_hits(self, forecast: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return whether the direction was right [window]; NaN where nothing moved, or no direction is forecast."""
        target = truth(part, dataset)
        if not self._is_traded or not forecast.any():
            return np.full(len(target), np.nan)
        return np.where(target != 0, np.sign(forecast) == np.sign(target), np.nan)

    def take_position(self, forecast: np.ndarray) -> np.ndarray:
        """Return the position that a forecast means: long or short by its sign."""
        return np.asarray(np.sign(forecast))

    @property
    def metric(self) -> str:
        """The metric of the verdict."""
        return self._key

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Return the ratio of going long if the forecast is above zero and short if below; None if it is not traded."""
        if not self._is_traded:
            return None
        return excess_sharpe(np.sign(output[:, 0].astype(np.float64)), windows, self.config)

    @property
    def is_scored(self) -> bool:
        """True if forecasts are of returns, and judged by squared errors or classes, as a server's log is."""
        return not self._has_own_target and (self.direction or self._key == losses.NAMES["mse"])

    @property
    def _has_own_target(self) -> bool:
        return getattr(self.target, "__func__", self.target) is not PriceTask.target

    @property
    def _has_own_loss(self) -> bool:
        return getattr(self.loss, "__func__", self.loss) is not PriceTask.loss

    @property
    def _is_traded(self) -> bool:
        if self.traded is not None:
            return self.traded
        return not (self._has_own_target or self._has_own_loss or self._key == losses.NAMES["quantile"])

    @property
    def _key(self) -> str:
        """The metric of the loss, by which the verdict is."""
        return "loss" if self._has_own_loss else losses.NAMES[self.config.train.loss]

    @property
    def _constant(self) -> str:
        """Name of the naive forecast that is the best constant."""
        return "mean" if self._key == losses.NAMES["mse"] else "constant"

    def _find_constant(self, targets: np.ndarray) -> float:
        if self._key == losses.NAMES["mae"]:
            return float(np.median(targets))
        if self._key == losses.NAMES["quantile"]:
            return float(np.quantile(targets, self.config.train.quantile))
        return losses.find_constant(self.loss, targets)

    def _losses(
        self, forecast: np.ndarray, target: np.ndarray, part: Windows, dataset: Dataset
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each window and its day. Of a loss of the user's, which is a sum: the loss of each day."""
        days, scale = list_days(part), dataset.target_scale
        if not self._has_own_loss:
            return losses.compute_losses(self.config.train, forecast, target, scale), days
        output, y = (torch.from_numpy(values / scale) for values in (forecast, target))
        groups = pd.Series(np.arange(len(days))).groupby(days).indices
        sums = [float(self.loss(output[rows, None], y[rows])) for rows in map(torch.from_numpy, groups.values())]
        return np.array(sums), np.array([*groups])

    def _restore(self, output: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return the forecasts [window] of a part from a model's outputs."""
        return self.forecast(output, dataset)

    def list_naive(self, part: Windows, dataset: Dataset) -> dict[str, np.ndarray]:
        """Return the naive forecasts of a part by name, in units of the target."""
        count = len(part)
        constant = np.full(count, dataset.naive_output * dataset.target_scale)
        forecasts = {"zero": np.zeros(count), self._constant: constant}
        if part.index is not None:
            forecasts["previous"] = part.index["previous"].to_numpy(np.float64)
        return forecasts

    def _score(self, forecast: np.ndarray, target: np.ndarray, part: Windows, dataset: Dataset) -> Metrics:
        scores = metrics.regression(forecast, target) | cross_section(forecast, part, self.config)
        if self._is_traded:
            scores |= score_trading(np.sign(forecast), part, self.config)
        if self._key not in scores:
            summed, _ = self._losses(forecast, target, part, dataset)
            scores[self._key] = float(summed.sum()) / len(part)
        if self._key == losses.NAMES["quantile"]:
            scores["coverage"] = float((target <= forecast).mean())
        return scores


def splits(dataset: Dataset) -> list[tuple[str, Windows]]:
    """Return the parts that are judged, by name."""
    parts = (("valid", dataset.valid), ("test", dataset.test))
    return [(name, part) for name, part in parts if part is not None]


def truth(part: Windows, dataset: Dataset) -> np.ndarray:
    """Return what came [window]; from the prices where they are known, since float32 targets were rounded."""
    if part.index is not None:
        return part.index["target" if "target" in part.index else "return"].to_numpy(np.float64)
    return part.targets.astype(np.float64) * dataset.target_scale


def last_return(close: pd.Series, horizon: int) -> float:
    """Return the log return over the last `horizon` sessions."""
    return float(np.log(close.iloc[-1]) - np.log(close.iloc[-1 - horizon]))


def list_days(part: Windows) -> np.ndarray:
    """Return the day of each window; its number where there are no dates."""
    return part.index["date"].to_numpy() if part.index is not None else np.arange(len(part))


def score_trading(position: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    """Return what holding these positions earns; nothing where there are no prices."""
    if part.index is None:
        return {}
    return metrics.trading(position, part.index, cost_bps=config.eval.cost_bps, horizon=config.data.horizon)


def growth(position: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    """Return what 1 becomes by these positions and by being always long; nothing where there are no prices."""
    if part.index is None:
        return {}
    cost, horizon = config.eval.cost_bps, config.data.horizon
    model, always_long = (
        metrics.growth(holding, part.index, cost_bps=cost, horizon=horizon)
        for holding in (position, np.ones(len(part)))
    )
    return {"growth": {"dates": model["dates"], "model": model["values"], "buy_and_hold": always_long["values"]}}


def buy_and_hold(part: Windows, config: RunConfig) -> Metrics:
    """Return what always being long earns on the same windows; nothing where there are no prices."""
    if part.index is None:
        return {}
    trading = score_trading(np.ones(len(part)), part, config)
    return {"buy_and_hold": {key: value for key, value in trading.items() if key != "excess"}}


def cross_section(forecast: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    """Return how well forecasts rank the tickers of a day; nothing for few tickers."""
    if part.index is None or part.index["ticker"].nunique() < metrics.FEWEST_TICKERS:
        return {}
    index = part.index.assign(**{"return": part.index["target"]}) if "target" in part.index else part.index
    return metrics.cross_section(forecast, index, horizon=config.data.horizon)


def excess_sharpe(position: np.ndarray, part: Windows, config: RunConfig) -> float | None:
    """Return the ratio of these positions in excess of always being long; None where there are no prices."""
    if part.index is None or not len(part):
        return None
    return metrics.excess_sharpe(position, part.index, horizon=config.data.horizon)


def label_rows(windows: Windows, columns: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return a table of these columns, with date and ticker where they are known."""
    table = pd.DataFrame(columns)
    if windows.index is None:
        return table
    return pd.concat([windows.index[["date", "ticker"]], table], axis=1)
