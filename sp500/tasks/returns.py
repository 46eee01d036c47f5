"""The next days' log return (regression) or its sign (direction), always compared with naive forecasts and with
buy-and-hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data import pipeline
from sp500.data.sources import arrays
from sp500.data.windows import Dataset, Windows
from sp500.runs.results import Metrics
from sp500.training.task import Task


@dataclass(frozen=True)
class Returns(Task):
    """Log return over the horizon, as an output in training standard deviations.

    Naive forecasts: zero, the previous return, the training mean.
    """

    unit: ClassVar[str] = "log return"
    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Return windows of prices, or of an npz file."""
        return _prepare(config, direction=False)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of squared errors."""
        return F.mse_loss(output.squeeze(-1), target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return errors, direction and trading per split; the improvement over the best naive forecast on the test."""
        forecasts = {name: self.forecast(output, dataset) for name, output in outputs.items()}
        scores = {
            name: self._score(forecasts[name], _truth(part, dataset), part) | _buy_and_hold(part, self.config)
            for name, part in _splits(dataset)
        }
        scores["test"] |= _growth(np.sign(forecasts["test"]), dataset.test, self.config)
        target = _truth(dataset.test, dataset)
        naive = {name: self._score(forecast, target, dataset.test) for name, forecast in _naive(dataset).items()}
        best = metrics.best_naive(naive, "mse", largest=False)
        scores["test"]["improvement"] = {
            "over": best,
            "metric": "mse",
            **metrics.improvement(
                (forecasts["test"] - target) ** 2,
                (_naive(dataset)[best] - target) ** 2,
                _days(dataset.test),
                horizon=self.config.data.horizon,
            ),
        }
        return {**scores, "naive": naive}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns date, ticker (if known), forecast, target: log returns."""
        return _label_rows(windows, {"forecast": self.forecast(output, dataset), "target": _truth(windows, dataset)})

    def encode(self, fields: Mapping[str, pd.Series], dataset: Dataset) -> np.ndarray:
        """Return X of the last days, as training had them."""
        return pipeline.last_window(fields, dataset)

    def forecast(self, output: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return log returns."""
        return output[:, 0].astype(np.float64) * dataset.target_scale

    def naive(self, close: pd.Series, dataset: Dataset) -> dict[str, float]:
        """Return the naive forecasts: no return, the training mean, the last return over the horizon."""
        mean = dataset.naive_output * dataset.target_scale
        return {"zero": 0.0, "mean": mean, "previous": _last_return(close, self.config.data.horizon)}

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Return the ratio of going long if the forecast is above zero and short if it is below."""
        return _excess_sharpe(np.sign(output[:, 0].astype(np.float64)), windows, self.config)

    def _score(self, forecast: np.ndarray, target: np.ndarray, part: Windows) -> Metrics:
        scores = metrics.regression(forecast, target) | _cross_section(forecast, part, self.config)
        return scores | _score_trading(np.sign(forecast), part, self.config)


@dataclass(frozen=True)
class Direction(Task):
    """The sign of the log return over the horizon, as log odds of a rise.

    Naive forecasts: majority class, previous direction.
    """

    unit: ClassVar[str] = "probability of a rise"
    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Return windows of prices, or of an npz file whose targets are 0 and 1."""
        return _prepare(config, direction=True)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of binary cross entropies."""
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return classification metrics at `eval.threshold` and trading per split; the improvement on the test."""
        scores = {
            name: self._score(_probability(outputs[name]), part)
            | metrics.probability_scores(_probability(outputs[name]), part.targets)
            | _buy_and_hold(part, self.config)
            for name, part in _splits(dataset)
        }
        scores["test"] |= _growth(self._position(_probability(outputs["test"])), dataset.test, self.config)
        forecasts = self._naive(dataset)
        naive = {name: self._score(forecast, dataset.test) for name, forecast in forecasts.items()}
        # A class is not a probability: the majority class counts as the training share of ups.
        share = np.full(len(dataset.test), 1 / (1 + math.exp(-dataset.naive_output)))
        naive["majority"] |= metrics.probability_scores(share, dataset.test.targets)
        best = metrics.best_naive(naive, "accuracy", largest=True)
        scores["test"]["improvement"] = {
            "over": best,
            "metric": "error_rate",
            **metrics.improvement(
                self._wrong(_probability(outputs["test"]), dataset.test),
                self._wrong(forecasts[best], dataset.test),
                _days(dataset.test),
                horizon=self.config.data.horizon,
            ),
        }
        return {**scores, "naive": naive}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns date, ticker (if known), forecast (probability of up), target (0 or 1)."""
        return _label_rows(windows, {"forecast": self.forecast(output, dataset), "target": windows.targets})

    def encode(self, fields: Mapping[str, pd.Series], dataset: Dataset) -> np.ndarray:
        """Return X of the last days, as training had them."""
        return pipeline.last_window(fields, dataset)

    def forecast(self, output: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return probabilities of a rise."""
        return _probability(output)

    def naive(self, close: pd.Series, dataset: Dataset) -> dict[str, float]:
        """Return the naive forecasts: the more frequent class in training, and the last direction over the horizon."""
        rose = _last_return(close, self.config.data.horizon) > 0
        return {"majority": float(dataset.naive_output >= 0), "previous": float(rose)}

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Return the ratio of going long if the probability of up reaches `eval.threshold` and short otherwise."""
        return _excess_sharpe(self._position(_probability(output)), windows, self.config)

    def _naive(self, dataset: Dataset) -> dict[str, np.ndarray]:
        forecasts = {"majority": np.full(len(dataset.test), float(dataset.naive_output >= 0))}
        if dataset.test.index is not None:
            forecasts["previous"] = (dataset.test.index["previous"].to_numpy() > 0).astype(np.float64)
        return forecasts

    def _wrong(self, probability: np.ndarray, part: Windows) -> np.ndarray:
        wrong = (probability >= self.config.eval.threshold) != (part.targets > 0.5)
        return np.asarray(wrong, np.float64)

    def _score(self, probability: np.ndarray, part: Windows) -> Metrics:
        threshold = self.config.eval.threshold
        scores = metrics.classification(probability, part.targets, threshold)
        scores |= _cross_section(probability, part, self.config)
        return scores | _score_trading(self._position(probability), part, self.config)

    def _position(self, probability: np.ndarray) -> np.ndarray:
        return np.where(probability >= self.config.eval.threshold, 1.0, -1.0)


def _prepare(config: RunConfig, *, direction: bool) -> Dataset:
    if config.data.npz_path:
        return arrays.dataset(config.data, config.train.dtype, direction=direction)
    return pipeline.prepare(config.data, direction=direction).dataset(config.train.dtype)


def _splits(dataset: Dataset) -> list[tuple[str, Windows]]:
    parts = (("valid", dataset.valid), ("test", dataset.test))
    return [(name, part) for name, part in parts if part is not None]


def _truth(part: Windows, dataset: Dataset) -> np.ndarray:
    """Return realised returns [window]; from the prices if they are known, since float32 targets were rounded."""
    if part.index is not None:
        return part.index["return"].to_numpy(np.float64)
    return part.targets.astype(np.float64) * dataset.target_scale


def _naive(dataset: Dataset) -> dict[str, np.ndarray]:
    count = len(dataset.test)
    forecasts = {"zero": np.zeros(count), "mean": np.full(count, dataset.naive_output * dataset.target_scale)}
    if dataset.test.index is not None:
        forecasts["previous"] = dataset.test.index["previous"].to_numpy(np.float64)
    return forecasts


def _last_return(close: pd.Series, horizon: int) -> float:
    return float(np.log(close.iloc[-1]) - np.log(close.iloc[-1 - horizon]))


def _days(part: Windows) -> np.ndarray:
    return part.index["date"].to_numpy() if part.index is not None else np.arange(len(part))


def _score_trading(position: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    if part.index is None:
        return {}
    return metrics.trading(position, part.index, cost_bps=config.eval.cost_bps, horizon=config.data.horizon)


def _growth(position: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    """Return the growth of 1 by these positions and by being always long; nothing if there are no prices."""
    if part.index is None:
        return {}
    cost, horizon = config.eval.cost_bps, config.data.horizon
    model, always_long = (
        metrics.growth(holding, part.index, cost_bps=cost, horizon=horizon)
        for holding in (position, np.ones(len(part)))
    )
    return {"growth": {"dates": model["dates"], "model": model["values"], "buy_and_hold": always_long["values"]}}


def _buy_and_hold(part: Windows, config: RunConfig) -> Metrics:
    """Return what always being long earns on the same windows; nothing if there are no prices."""
    if part.index is None:
        return {}
    trading = _score_trading(np.ones(len(part)), part, config)
    return {"buy_and_hold": {key: value for key, value in trading.items() if key != "excess"}}


def _cross_section(forecast: np.ndarray, part: Windows, config: RunConfig) -> Metrics:
    if part.index is None or part.index["ticker"].nunique() < metrics.FEWEST_TICKERS:
        return {}
    return metrics.cross_section(forecast, part.index, horizon=config.data.horizon)


def _excess_sharpe(position: np.ndarray, part: Windows, config: RunConfig) -> float | None:
    if part.index is None or not len(part):
        return None
    return metrics.excess_sharpe(position, part.index, horizon=config.data.horizon)


def _probability(output: np.ndarray) -> np.ndarray:
    # exp of a large positive number overflows to infinity, and 1 / infinity is the right 0.
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-output[:, 0].astype(np.float64))))


def _label_rows(windows: Windows, columns: dict[str, np.ndarray]) -> pd.DataFrame:
    table = pd.DataFrame(columns)
    if windows.index is None:
        return table
    return pd.concat([windows.index[["date", "ticker"]], table], axis=1)
