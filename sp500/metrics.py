"""How forecasts are judged: errors, direction, and what trading on them would have earned.

Plain NumPy arrays in, a dictionary of floats out; scikit-learn where it has the metric. A metric that is not defined
on the given data (a correlation with a constant forecast) is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sp500.bootstrap import stationary_bootstrap
from sp500.seeding import numpy_generator

TRADING_DAYS = 252
Metrics = dict[str, Any]


def regression(forecast: np.ndarray, target: np.ndarray) -> Metrics:
    """mse, mae, r2, directional accuracy and information coefficient of forecasts [sample].

    Directional accuracy counts samples whose target is not 0; a forecast of 0 names no direction and counts as wrong.
    The information coefficient is Spearman's rank correlation (Grinold and Kahn 2000).
    """
    from scipy.stats import spearmanr

    error = forecast - target
    spread = float(((target - target.mean()) ** 2).sum()) if np.ptp(target) else 0.0
    moved = target != 0
    constant = np.ptp(forecast) == 0 or np.ptp(target) == 0
    return {
        "mse": float((error**2).mean()),
        "mae": float(np.abs(error).mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread else None,
        "directional_accuracy": float((np.sign(forecast[moved]) == np.sign(target[moved])).mean())
        if moved.any()
        else None,
        "information_coefficient": None if constant else float(spearmanr(forecast, target).statistic),
        "samples": len(target),
    }


def trading(position: np.ndarray, index: pd.DataFrame, *, cost_bps: float, horizon: int = 1) -> Metrics:
    """Sharpe ratios, before and after costs, of holding `position` [sample] (-1, 0, 1) in each row of `index`.

    `index` has date, ticker and return (log, over `horizon` days). Tickers weigh the same on a day; with a horizon
    above 1 only every horizon-th day trades, so that holdings do not overlap. Turnover is the mean traded share of the
    capital per trade, entry from cash included. Annualised with 252 days, no risk-free rate (Sharpe 1994).
    """
    table = index.assign(position=position)
    positions = table.pivot(index="date", columns="ticker", values="position").iloc[::horizon]
    simple = table.assign(simple=np.expm1(table["return"]))
    returns = simple.pivot(index="date", columns="ticker", values="simple").iloc[::horizon]
    weights = positions.div(positions.notna().sum(axis=1), axis=0).fillna(0.0)
    gross = (weights * returns.fillna(0.0)).sum(axis=1)
    turnover = weights.diff().fillna(weights.iloc[:1]).abs().sum(axis=1)
    net = gross - turnover * cost_bps / 1e4
    return {
        "sharpe": _sharpe(gross, horizon),
        "sharpe_after_cost": _sharpe(net, horizon),
        "turnover": float(turnover.mean()),
    }


def classification(probability: np.ndarray, target: np.ndarray, threshold: float) -> Metrics:
    """Accuracy, precision, recall, f1, ROC-AUC and confusion matrix [[tn, fp], [fn, tp]] of P(target = 1) [sample]."""
    from sklearn import metrics

    said = (probability >= threshold).astype(int)
    truth = target.astype(int)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(truth, said, average="binary", zero_division=0.0)
    both = np.unique(truth).size > 1
    return {
        "accuracy": float((said == truth).mean()),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "roc_auc": float(metrics.roc_auc_score(truth, probability)) if both else None,
        "confusion_matrix": metrics.confusion_matrix(truth, said, labels=[0, 1]).tolist(),
        "samples": len(truth),
    }


def multiclass(scores: np.ndarray, target: np.ndarray) -> Metrics:
    """Accuracy, macro f1 and confusion matrix of class scores [sample, class]."""
    from sklearn import metrics

    said = scores.argmax(axis=1)
    return {
        "accuracy": float((said == target).mean()),
        "f1": float(metrics.f1_score(target, said, average="macro", zero_division=0.0)),
        "confusion_matrix": metrics.confusion_matrix(target, said, labels=range(scores.shape[1])).tolist(),
        "samples": len(target),
    }


def improvement(
    loss: np.ndarray,
    naive_loss: np.ndarray,
    dates: np.ndarray,
    *,
    resamples: int,
    seed: int,
    block: float = 20.0,
) -> Metrics:
    """Share by which the mean loss [sample] is below the naive one's, with a 95 % interval.

    The interval resamples days, not samples, in blocks of random length (stationary bootstrap, Politis and Romano
    1994, mean length `block` days), since losses of neighbouring days and of tickers on one day are alike. None where
    the naive forecast is never wrong.
    """
    days = pd.DataFrame({"date": dates, "loss": loss, "naive": naive_loss, "count": 1.0})
    daily = days.groupby("date").sum().to_numpy()
    if not daily[:, 1].any():
        return {"value": None, "low": None, "high": None}
    value = float(1 - daily[:, 0].sum() / daily[:, 1].sum())
    if not resamples or len(daily) < 2:
        return {"value": value, "low": None, "high": None}
    generator = numpy_generator(seed, "bootstrap")
    # A few resamples at a time: a thousand of 100,000 days at once would take gigabytes.
    at_once = max(1, 200_000 // len(daily))
    parts = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    sums = np.concatenate(
        [daily[stationary_bootstrap(len(daily), part, block, generator)].sum(axis=1) for part in parts]
    )
    if not sums[:, 1].all():  # in some resamples the naive forecast was never wrong
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(1 - sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return {"value": value, "low": float(low), "high": float(high)}


def best_naive(naive: Mapping[str, Metrics], metric: str, *, largest: bool) -> str:
    """Name of the naive forecast that is hardest to beat."""
    return (max if largest else min)(naive, key=lambda name: naive[name][metric])


def _sharpe(returns: pd.Series, horizon: int) -> float | None:
    deviation = float(returns.std())
    # Rounding leaves a deviation of about 1e-19 where every return is the same.
    if not deviation > 1e-12:
        return None
    return float(returns.mean()) / deviation * float(np.sqrt(TRADING_DAYS / horizon))
