"""How forecasts are judged: errors, direction, and what trading on them would have earned.

Plain NumPy arrays in, a dictionary of floats out; scikit-learn where it has the metric. A metric that is not defined
on the given data (a correlation with a constant forecast) is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from sp500.bootstrap import stationary_bootstrap
from sp500.seeding import numpy_generator

TRADING_DAYS = 252
EULER = 0.5772156649015329
"""The Euler-Mascheroni constant."""
Metrics = dict[str, Any]


def regression(forecast: np.ndarray, target: np.ndarray) -> Metrics:
    """mse, mae, r2, directional accuracy and information coefficient of forecasts [sample].

    Directional accuracy counts samples whose target is not 0; a forecast of 0 names no direction and counts as wrong.
    The information coefficient is Spearman's rank correlation (Grinold and Kahn 2000).
    """
    error = forecast - target
    spread = float(((target - target.mean()) ** 2).sum()) if np.ptp(target) else 0.0
    moved = target != 0
    constant = np.ptp(forecast) == 0 or np.ptp(target) == 0
    both = pd.DataFrame({"forecast": forecast, "target": target})
    return {
        "mse": float((error**2).mean()),
        "mae": float(np.abs(error).mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread else None,
        "directional_accuracy": float((np.sign(forecast[moved]) == np.sign(target[moved])).mean())
        if moved.any()
        else None,
        "information_coefficient": None if constant else float(both.corr("spearman").to_numpy()[0, 1]),
        "samples": len(target),
    }


def trading(position: np.ndarray, index: pd.DataFrame, *, cost_bps: float, horizon: int = 1) -> Metrics:
    """Sharpe ratios, before and after costs, of holding `position` [sample] (-1, 0, 1) in each row of `index`.

    `index` has date, ticker and return (log, over `horizon` days). Tickers weigh the same on a day; with a horizon
    above 1 only every horizon-th day trades, so that holdings do not overlap. Turnover is the mean traded share of the
    capital per trade, entry from cash included. Annualised with 252 days, no risk-free rate (Sharpe 1994).
    `daily_sharpe` is the ratio before costs, per trade and not annualised; with skew, kurtosis (3 for a normal
    distribution) and `observations`, the number of trades, it is what `deflated_sharpe` takes.
    """
    gross = _earned(position, index, horizon)
    positions = index.assign(position=position).pivot(index="date", columns="ticker", values="position").iloc[::horizon]
    weights = positions.div(positions.notna().sum(axis=1), axis=0).fillna(0.0)
    turnover = weights.diff().fillna(weights.iloc[:1]).abs().sum(axis=1).to_numpy()
    net = gross - turnover * cost_bps / 1e4
    year = float(np.sqrt(TRADING_DAYS / horizon))
    before, after = _sharpe(gross), _sharpe(net)
    return {
        "sharpe": None if before is None else before * year,
        "sharpe_after_cost": None if after is None else after * year,
        "turnover": float(turnover.mean()),
        "daily_sharpe": before,
        **_shape(gross),
        "observations": len(gross),
    }


def daily_sharpe(position: np.ndarray, index: pd.DataFrame, *, horizon: int = 1) -> float | None:
    """`daily_sharpe` of `trading` alone, in a tenth of the time: a search asks for it once per config."""
    return _sharpe(_earned(position, index, horizon))


def deflated_sharpe(
    sharpe: float | None,
    trial_sharpes: Sequence[float | None],
    skew: float | None,
    kurtosis: float | None,
    observations: int,
) -> Metrics | None:
    """What luck alone makes of the best of `trials` configs, and the probability that the true ratio is above zero.

    `expected_max` is the largest Sharpe ratio to be expected of as many configs without skill, and `probability` the
    deflated Sharpe ratio: P(true > 0) of `sharpe` held against it (Bailey and Lopez de Prado 2014, "The Deflated
    Sharpe Ratio"). No ratio is annualised; kurtosis is not excess; `observations` are the returns behind `sharpe`.
    Each of `trial_sharpes` is a config tried: one without a ratio (None) still counts as a try. None where fewer than
    two have a ratio, or the chosen one has none. The price: configs count as independent tries, also where they hardly
    differ.
    """
    known = [one for one in trial_sharpes if one is not None]
    if len(known) < 2 or sharpe is None or skew is None or kurtosis is None or observations < 2:
        return None
    count, normal = len(trial_sharpes), NormalDist()
    luck = (1 - EULER) * normal.inv_cdf(1 - 1 / count) + EULER * normal.inv_cdf(1 - 1 / (count * math.e))
    expected = float(np.std(known, ddof=1)) * luck
    # The variance of the ratio's estimate, times the observations. It is zero for some two-valued returns.
    spread = 1 - skew * sharpe + (kurtosis - 1) / 4 * sharpe**2
    sure = (sharpe - expected) * math.sqrt((observations - 1) / spread) if spread > 0 else None
    return {
        "expected_max": expected,
        "probability": None if sure is None else normal.cdf(sure),
        "trials": count,
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


def _earned(position: np.ndarray, index: pd.DataFrame, horizon: int) -> np.ndarray:
    """Simple return [trade] of the capital spread evenly over the tickers of a day, on every horizon-th day."""
    days, day = np.unique(index["date"].to_numpy(), return_inverse=True)
    earned = position * np.expm1(index["return"].to_numpy(np.float64))
    mean = np.bincount(day, earned, len(days)) / np.bincount(day, minlength=len(days))
    return np.asarray(mean[::horizon])


def _sharpe(returns: np.ndarray) -> float | None:
    return float(returns.mean() / returns.std(ddof=1)) if _vary(returns) else None


def _shape(returns: np.ndarray) -> Metrics:
    """Third and fourth standardised moments, as SciPy's `skew` and `kurtosis(fisher=False)`."""
    if not _vary(returns):
        return {"skew": None, "kurtosis": None}
    scores = (returns - returns.mean()) / returns.std()
    return {"skew": float((scores**3).mean()), "kurtosis": float((scores**4).mean())}


def _vary(returns: np.ndarray) -> bool:
    # Rounding leaves a deviation of about 1e-19 where every return is the same.
    return len(returns) > 1 and float(returns.std(ddof=1)) > 1e-12
