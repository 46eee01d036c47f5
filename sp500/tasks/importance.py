"""Permutation importance: what a trained model's loss gains when a part of its inputs is shuffled among the windows.

No model is trained again (Breiman 2001, Machine Learning 45, section 10). A shuffled window is one that never was, and
inputs that say the same share their importance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from sp500.data.windows import Dataset, Windows
from sp500.errors import ConfigError
from sp500.intervals import half_width
from sp500.runs.details import Importance, Part
from sp500.seeding import numpy_generator
from sp500.tasks.prices import PriceTask, list_days

Predict = Callable[[Windows], np.ndarray]


def choose_windows(part: Windows, most: int, seed: int) -> Windows:
    """Return windows that own their rows, at most so many, drawn without order of the seed; 0: all."""
    chosen = np.arange(len(part))
    if 0 < most < len(part):
        chosen = np.sort(numpy_generator(seed, "importance windows").choice(len(part), most, replace=False))
    rows = part.rows[part.starts[chosen, None] + np.arange(part.length)]
    return Windows(
        rows.reshape(-1, *part.rows.shape[1:]),
        np.arange(len(chosen)) * part.length,
        part.targets[chosen],
        part.length,
        None if part.index is None else part.index.iloc[chosen].reset_index(drop=True),
    )


def draw_orders(count: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Return `repeats` orders of so many windows."""
    return [numpy_generator(seed, "importance", repeat).permutation(count) for repeat in range(repeats)]


def permute(
    task: PriceTask, dataset: Dataset, windows: Windows, predict: Predict, orders: Sequence[np.ndarray]
) -> tuple[float, list[Part], list[Part]]:
    """Return the loss of these windows, and what it gains per feature (with all its days) and per lag.

    `predict` gives what is kept [window, 1]; each of `orders` is one shuffle of the windows, the same for every part.
    Raises ConfigError for a model whose windows have no features by name.
    """
    names = dataset.state.get("features")
    if not names or len(names) != windows.rows.shape[-1]:
        raise ConfigError("importance is by feature and day of prices, and this model has none by name")
    x = windows.rows.reshape(len(windows), windows.length, -1)
    days, horizon = list_days(windows), task.config.data.horizon

    def measure(rows: np.ndarray) -> np.ndarray:
        """Return the loss of each window with these inputs."""
        changed = replace(windows, rows=np.ascontiguousarray(rows.reshape(windows.rows.shape)))
        return task.compute_losses(task.forecast(predict(changed), dataset), changed, dataset)

    base = measure(x)

    def shuffle(name: str, place: tuple[slice | int, ...]) -> Part:
        """Return what the loss gains when the inputs at a place of each window come from other windows."""
        total = np.zeros(len(windows))
        for order in orders:
            rows = x.copy()
            rows[place] = x[place][order]
            total += measure(rows)
        return _describe(name, total / len(orders) - base, float(base.mean()), days, horizon)

    every = slice(None)
    features = [shuffle(str(name), (every, every, number)) for number, name in enumerate(names)]
    lags = [shuffle(str(windows.length - 1 - day), (every, day)) for day in reversed(range(windows.length))]
    return float(base.mean()), features, lags


def find_importance(
    task: PriceTask, dataset: Dataset, predict: Predict, *, repeats: int, seed: int, most: int
) -> Importance:
    """Return the importance on the validation windows. Raises ConfigError for a run without any."""
    if dataset.valid is None:
        raise ConfigError("importance is measured on the validation windows, and this run has none")
    windows = choose_windows(dataset.valid, most, seed)
    loss, features, lags = permute(task, dataset, windows, predict, draw_orders(len(windows), repeats, seed))
    return {
        "metric": task.metric,
        "loss": loss,
        "windows": len(windows),
        "repeats": repeats,
        "seed": seed,
        "features": features,
        "lags": lags,
    }


def _describe(name: str, gain: np.ndarray, loss: float, days: np.ndarray, horizon: int) -> Part:
    """Return the mean gain with its interval, whose observations are days: losses of one day are alike."""
    increase = float(gain.mean())
    if not loss:
        return {"name": name, "increase": increase, "share": None, "low": None, "high": None}
    daily = pd.Series(gain - increase).groupby(days).sum().to_numpy()
    margin = half_width(daily * len(daily) / len(gain), overlap=horizon, slow=True)
    ends = (None, None) if margin is None else ((increase - margin) / loss, (increase + margin) / loss)
    return {"name": name, "increase": increase, "share": increase / loss, "low": ends[0], "high": ends[1]}
