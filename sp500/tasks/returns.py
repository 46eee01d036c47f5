"""The next days' log return (regression) or its sign (direction), always compared with naive forecasts and with
buy-and-hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor

from sp500 import metrics
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.runs.results import Metrics
from sp500.tasks import prices
from sp500.tasks.prices import PriceTask


@dataclass(frozen=True)
class Returns(PriceTask):
    """Log return over the horizon, as an output in training standard deviations.

    Naive forecasts: zero, the previous return, the training mean, or the best constant of another loss.
    """


@dataclass(frozen=True)
class Direction(PriceTask):
    """Whether the log return over the horizon is above zero, as log odds.

    Naive forecasts: majority class, previous direction.
    """

    unit: ClassVar[str] = "probability of a rise"
    direction: ClassVar[bool] = True

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of binary cross entropies."""
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return classification metrics at `eval.threshold` and trading per split; the improvement on the test."""
        scores = {
            name: self._score_class(_probability(outputs[name]), part)
            | metrics.probability_scores(_probability(outputs[name]), part.targets)
            | (prices.buy_and_hold(part, self.config) if self._is_traded else {})
            for name, part in prices.splits(dataset)
        }
        if self._is_traded:
            scores["test"] |= prices.growth(
                self.take_position(_probability(outputs["test"])), dataset.test, self.config
            )
        forecasts = self.list_naive(dataset.test, dataset)
        naive = {name: self._score_class(forecast, dataset.test) for name, forecast in forecasts.items()}
        # A class is not a probability: the majority class counts as the training share of ups.
        share = np.full(len(dataset.test), 1 / (1 + math.exp(-dataset.naive_output)))
        naive["majority"] |= metrics.probability_scores(share, dataset.test.targets)
        best = metrics.best_naive(naive, "accuracy", largest=True)
        scores["test"]["improvement"] = {
            "over": best,
            "metric": "error_rate",
            **metrics.improvement(
                self.compute_losses(_probability(outputs["test"]), dataset.test, dataset),
                self.compute_losses(forecasts[best], dataset.test, dataset),
                prices.list_days(dataset.test),
                horizon=self.config.data.horizon,
            ),
        }
        return {**scores, "naive": naive}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns date, ticker (if known), forecast (probability of up), target (0 or 1)."""
        return prices.label_rows(windows, {"forecast": self.forecast(output, dataset), "target": windows.targets})

    def forecast(self, output: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return probabilities of a rise."""
        return _probability(output)

    def invert_forecast(self, forecast: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return log odds [window, 1]. Raises DataError for a value outside 0 to 1."""
        if ((forecast < 0) | (forecast > 1)).any():
            got = f"{forecast.min():g} to {forecast.max():g}"
            raise DataError(f"forecasts of a direction are probabilities, from 0 to 1; got {got}")
        with np.errstate(divide="ignore"):  # the odds of 1 are infinite
            return np.asarray(np.log(forecast / (1 - forecast)))[:, None]

    def naive(self, close: pd.Series, dataset: Dataset) -> dict[str, float]:
        """Return the class that is more frequent in training, and the last direction over the horizon."""
        majority = {"majority": float(dataset.naive_output >= 0)}
        if self._has_own_target:
            return majority
        return {**majority, "previous": float(prices.last_return(close, self.config.data.horizon) > 0)}

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Of going long where the probability of up reaches `eval.threshold` and short elsewhere."""
        if not self._is_traded:
            return None
        return prices.excess_sharpe(self.take_position(_probability(output)), windows, self.config)

    @property
    def _is_traded(self) -> bool:
        return not self._has_own_target if self.traded is None else self.traded

    def list_naive(self, part: Windows, dataset: Dataset) -> dict[str, np.ndarray]:
        """Return the naive forecasts of a part by name, as probabilities of a rise."""
        forecasts = {"majority": np.full(len(part), float(dataset.naive_output >= 0))}
        if part.index is not None:
            forecasts["previous"] = (part.index["previous"].to_numpy() > 0).astype(np.float64)
        return forecasts

    def compute_losses(self, forecast: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return 1 for a wrong class and 0 for a right one [window]."""
        wrong = (forecast >= self.config.eval.threshold) != (part.targets > 0.5)
        return np.asarray(wrong, np.float64)

    def find_truth(self, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return the classes [window]."""
        return part.targets.astype(np.float64)

    def find_hits(self, forecast: np.ndarray, part: Windows, dataset: Dataset) -> np.ndarray:
        """Return 1 for a right class and 0 for a wrong one [window]."""
        return 1 - self.compute_losses(forecast, part, dataset)

    @property
    def metric(self) -> str:
        """The metric of the verdict."""
        return "error_rate"

    def _score_class(self, probability: np.ndarray, part: Windows) -> Metrics:
        threshold = self.config.eval.threshold
        scores = metrics.classification(probability, part.targets, threshold)
        scores |= prices.cross_section(probability, part, self.config)
        if not self._is_traded:
            return scores
        return scores | prices.score_trading(self.take_position(probability), part, self.config)

    def take_position(self, forecast: np.ndarray) -> np.ndarray:
        """Return the position that a probability means: long from `eval.threshold` on, short below."""
        return np.where(forecast >= self.config.eval.threshold, 1.0, -1.0)


def _probability(output: np.ndarray) -> np.ndarray:
    # exp of a large positive number overflows to infinity, and 1 / infinity is the right 0.
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-output[:, 0].astype(np.float64))))
