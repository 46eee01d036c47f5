"""Losses of a regression, for training and for the verdict, and the best constant forecast under any of them.

Training sees targets in training standard deviations; the verdict is in the units of the target.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sp500.config import TrainConfig

NAMES = {"mse": "mse", "mae": "mae", "huber": "huber", "quantile": "pinball"}
"""The metric of each loss."""
HUBER = 1.0
"""Training standard deviations from which an error counts linearly (Huber 1964)."""
STARTS = 65
"""Quantiles of the targets among which the search for a constant starts."""


def sum_loss(train: TrainConfig, output: Tensor, target: Tensor) -> Tensor:
    """Return the sum over the batch of the loss that `train.loss` names."""
    if train.loss == "mae":
        return F.l1_loss(output, target, reduction="sum")
    if train.loss == "huber":
        return F.huber_loss(output, target, reduction="sum", delta=HUBER)
    if train.loss == "quantile":
        error = target - output
        return torch.maximum(train.quantile * error, (train.quantile - 1) * error).sum()
    return F.mse_loss(output, target, reduction="sum")


def compute_losses(train: TrainConfig, forecast: np.ndarray, target: np.ndarray, scale: float) -> np.ndarray:
    """Return the loss of each forecast [window], in units of the target; `scale` is its training deviation.

    mse: e²; mae: |e|; huber: e²/2 up to one deviation d, above it d (|e| - d/2); pinball: q e for a target above the
    forecast, else (q - 1) e (Koenker and Bassett 1978), with e = target - forecast.
    """
    if train.loss == "mse":
        return np.asarray((forecast - target) ** 2)
    error = np.asarray(target - forecast)
    size: np.ndarray = np.abs(error)
    if train.loss == "mae":
        return size
    if train.loss == "huber":
        bend = HUBER * scale
        return np.asarray(np.where(size <= bend, error**2 / 2, bend * (size - bend / 2)))
    return np.asarray(np.maximum(train.quantile * error, (train.quantile - 1) * error))


def find_constant(loss: Callable[[Tensor, Tensor], Tensor], targets: np.ndarray) -> float:
    """Return the constant output with the smallest sum of a loss over targets [window].

    The best of STARTS quantiles, then refined between its neighbours, so that a loss with several minima ends in a good
    one. A loss that is not finite somewhere is not chosen there.
    """
    from scipy.optimize import minimize_scalar  # 0.15 s, which the default loss does not need

    known = torch.from_numpy(targets.astype(np.float64))

    def total(constant: float) -> float:
        value = float(loss(torch.full((len(known), 1), float(constant), dtype=torch.float64), known))
        return value if np.isfinite(value) else np.inf

    starts = np.unique([0.0, *np.quantile(targets, np.linspace(0, 1, STARTS))])
    totals = [total(start) for start in starts]
    place = int(np.argmin(totals))
    low, high = starts[max(place - 1, 0)], starts[min(place + 1, len(starts) - 1)]
    if low == high:
        return float(starts[place])
    refined = minimize_scalar(total, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * (high - low)})
    return float(refined.x if refined.fun < totals[place] else starts[place])
