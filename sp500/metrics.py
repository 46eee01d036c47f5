"""Metrics of forecasts: errors, direction, and what trading on them would have earned.

Plain NumPy arrays in, a dictionary of floats out; scikit-learn if it has the metric. A metric that is not defined
on the given data (a correlation with a constant forecast) is None, never NaN. `NAME_interval` is the 95% interval
[low, high] of the metric NAME.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd

from sp500.intervals import half_width, standard_error
from sp500.runs.results import DeflatedSharpe, Metrics

TRADING_DAYS = 252
EULER = 0.5772156649015329
"""The Euler-Mascheroni constant."""
FEWEST_DAYS_APART = 20
"""Days on which a position must differ from always long to be judged as another one."""
FEWEST_TICKERS = 5
"""Tickers on a date from which its cross-section is ranked."""


def regression(forecast: np.ndarray, target: np.ndarray) -> Metrics:
    """Return mse, mae, r2, directional accuracy and information coefficient of forecasts [sample].

    Directional accuracy counts samples whose target is not 0; a forecast of 0 names no direction and counts as wrong.
    It is None for a forecast that is always 0. The information coefficient is Spearman's rank correlation (Grinold and
    Kahn 2000, Active Portfolio Management, chapter 6).
    """
    error = forecast - target
    spread = float(((target - target.mean()) ** 2).sum()) if np.ptp(target) else 0.0
    moved = target != 0
    directed = moved.any() and forecast.any()
    constant = np.ptp(forecast) == 0 or np.ptp(target) == 0
    both = pd.DataFrame({"forecast": forecast, "target": target})
    return {
        "mse": float((error**2).mean()),
        "mae": float(np.abs(error).mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread else None,
        "directional_accuracy": float((np.sign(forecast[moved]) == np.sign(target[moved])).mean())
        if directed
        else None,
        "information_coefficient": None if constant else float(both.corr("spearman").to_numpy()[0, 1]),
        "samples": len(target),
    }


def cross_section(forecast: np.ndarray, index: pd.DataFrame, *, horizon: int = 1) -> Metrics:
    """Return the mean rank correlation per date between forecasts and returns of the tickers, and its t statistic.

    The mean divided by its Newey-West standard error (Fama and MacBeth 1973, with correlated dates). Says whether a
    forecast ranks the tickers of a day; the pooled coefficient of `regression` also counts the direction of the market.
    Nothing if no date has at least five tickers with different forecasts and returns.
    """
    dates = index["date"].to_numpy()
    table = pd.DataFrame({"forecast": forecast, "target": index["return"].to_numpy()})
    ranks = table.groupby(dates).rank()
    ranks -= ranks.groupby(dates).transform("mean")
    sums = (ranks.assign(product=ranks["forecast"] * ranks["target"], count=1.0)).groupby(dates)
    squares = (ranks[["forecast", "target"]] ** 2).groupby(dates).sum().prod(axis=1)
    usable = (sums["count"].sum() >= FEWEST_TICKERS) & (squares > 0)
    daily = (sums["product"].sum()[usable] / np.sqrt(squares[usable])).to_numpy()
    error = standard_error(daily, overlap=horizon) if len(daily) > 1 else 0.0
    return {"daily_ic": float(daily.mean()), "daily_ic_t": float(daily.mean() / error)} if error else {}


def trading(position: np.ndarray, index: pd.DataFrame, *, cost_bps: float, horizon: int = 1) -> Metrics:
    """Return Sharpe ratios, before and after costs, of holding `position` [sample] (-1, 0, 1) in each row of `index`.

    `index` has date, ticker and return (log, over `horizon` days). Tickers weigh the same on a day. With a horizon
    above 1 only every horizon-th day trades, so that holdings do not overlap; the ratio is the mean over the `horizon`
    possible first days. Turnover is the mean traded share of the capital per trade, entry from cash included.
    Annualised with 252 days, no risk-free rate (Sharpe 1994). `excess` describes the returns in excess of always being
    long, which `deflated_sharpe` needs.
    """
    gross, turnover = earn(position, index, horizon=horizon)
    positions = _positions(position, index)
    year = math.sqrt(TRADING_DAYS / horizon)
    ratios = {"sharpe": gross, "sharpe_after_cost": gross - turnover * cost_bps / 1e4}
    annual = {name: annual_sharpe(returns, horizon, year) for name, returns in ratios.items()}
    intervals = {f"{name}_interval": sharpe_interval(returns, horizon, year) for name, returns in ratios.items()}
    apart = int(((positions != 1) & positions.notna()).any(axis=1).sum())
    excess = _portfolio_returns(position - 1, index)
    moments = {"sharpe": _sharpe(excess, horizon), **_shape(excess), "observations": len(excess) // horizon}
    return {**annual, **intervals, "turnover": float(turnover.mean()), "excess": {**moments, "days_apart": apart}}


def earn(position: np.ndarray, index: pd.DataFrame, *, horizon: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return what `position` [sample] earns over the horizon [day], and the share of the capital traded [day].

    The capital is spread evenly over the tickers of a day, so that a position of 2 is twice a ticker's share.
    """
    return _portfolio_returns(position, index), _turnover(_positions(position, index), horizon)


def growth(position: np.ndarray, index: pd.DataFrame, *, cost_bps: float, horizon: int = 1) -> Metrics:
    """Return the growth of 1 by holding `position` [sample] as in `trading`, after costs, with all earnings reinvested.

    `dates` and `values` after the last trade of each month. With a horizon above 1 only every horizon-th day trades,
    from the first on.
    """
    gross, turnover = earn(position, index, horizon=horizon)
    days = list_trading_days(index, horizon)
    value = np.cumprod(1 + (gross - turnover * cost_bps / 1e4)[::horizon])
    last = find_month_ends(days)
    return {"dates": np.datetime_as_string(days[last], unit="D").tolist(), "values": value[last].tolist()}


def list_trading_days(index: pd.DataFrame, horizon: int) -> np.ndarray:
    """Return every horizon-th date of `index`, from the first on."""
    return np.unique(index["date"].to_numpy())[::horizon]


def find_month_ends(days: np.ndarray) -> np.ndarray:
    """Return the places of the last day of each month."""
    month = days.astype("datetime64[M]")
    return np.flatnonzero(np.append(month[1:] != month[:-1], True))


def excess_sharpe(position: np.ndarray, index: pd.DataFrame, *, horizon: int = 1) -> float | None:
    """Return only the ratio of `excess` in `trading`, in a tenth of the time: a search needs it once per config."""
    return _sharpe(_portfolio_returns(position - 1, index), horizon)


def deflated_excess(excess: Metrics | None, trial_sharpes: Sequence[float | None]) -> DeflatedSharpe | None:
    """Return `deflated_sharpe` of the chosen config's returns in excess of always being long, `excess` of `trading`.

    Without the subtraction a config that holds a rising market earns the market's ratio, which would be taken for
    skill. Sharpe ratios of excess returns are the usual ones against a benchmark (Sharpe 1994, "The Sharpe Ratio").
    Adds `sharpe`, the ratio itself, and `days_apart`, on how many days the position was not long. On under 20 such days
    the config is the same as buy-and-hold: it has no probability.
    """
    if excess is None:
        return None
    deflated: Metrics | None = {"expected_max": None, "probability": None}
    if excess["days_apart"] >= FEWEST_DAYS_APART:
        moments = excess["skew"], excess["kurtosis"], excess["observations"]
        deflated = deflated_sharpe(excess["sharpe"], trial_sharpes, *moments)
    if deflated is None:
        return None
    return DeflatedSharpe(
        sharpe=excess["sharpe"],
        days_apart=excess["days_apart"],
        trials=len(trial_sharpes),
        expected_max=deflated["expected_max"],
        probability=deflated["probability"],
    )


def deflated_sharpe(
    sharpe: float | None,
    trial_sharpes: Sequence[float | None],
    skew: float | None,
    kurtosis: float | None,
    observations: int,
) -> Metrics | None:
    """Return the best ratio that luck alone gives `trials` configs, and the probability that the true one is above 0.

    `expected_max` is the largest Sharpe ratio to be expected of as many configs without skill, and `probability` the
    deflated Sharpe ratio: P(true > 0) of `sharpe` held against it (Bailey and Lopez de Prado 2014, "The Deflated
    Sharpe Ratio"). No ratio is annualised; kurtosis is not excess; `observations` are the returns behind `sharpe`.
    Each of `trial_sharpes` is a config tried: one without a ratio (None) still counts as a try. None if fewer than
    two have a ratio, or the chosen one has none. The price: configs count as independent tries, even if they are nearly
    the same.
    """
    known = [ratio for ratio in trial_sharpes if ratio is not None]
    if len(known) < 2 or sharpe is None or skew is None or kurtosis is None or observations < 2:
        return None
    return _deflate(sharpe, float(np.std(known, ddof=1)), len(trial_sharpes), (skew, kurtosis), observations)


def _deflate(sharpe: float, deviation: float, count: int, moments: tuple[float, float], observations: int) -> Metrics:
    """Return `deflated_sharpe` for the best of `count` configs whose ratios have this standard deviation."""
    normal, (skew, kurtosis) = NormalDist(), moments
    luck = (1 - EULER) * normal.inv_cdf(1 - 1 / count) + EULER * normal.inv_cdf(1 - 1 / (count * math.e))
    expected = deviation * luck
    # The variance of the ratio's estimate, times the observations. It is zero for some two-valued returns.
    spread = 1 - skew * sharpe + (kurtosis - 1) / 4 * sharpe**2
    sure = (sharpe - expected) * math.sqrt((observations - 1) / spread) if spread > 0 else None
    return {
        "expected_max": expected,
        "probability": None if sure is None else normal.cdf(sure),
        "trials": count,
    }


def deflate_unknown(excess: Metrics, trials: int) -> Metrics | None:
    """Return `deflated_sharpe` of `excess` of `trading` for the best of `trials` configs whose ratios are not known.

    Those of configs without skill deviate by 1 / sqrt(observations), the standard error of a ratio that is 0 (Lo 2002).
    """
    sharpe, moments, observations = excess["sharpe"], (excess["skew"], excess["kurtosis"]), excess["observations"]
    if trials < 2 or excess["days_apart"] < FEWEST_DAYS_APART or sharpe is None or None in moments or observations < 2:
        return None
    return _deflate(sharpe, 1 / math.sqrt(observations), trials, moments, observations)


def classification(probability: np.ndarray, target: np.ndarray, threshold: float) -> Metrics:
    """Return accuracy, precision, recall, f1, ROC-AUC and confusion [[tn, fp], [fn, tp]] of P(target = 1) [sample]."""
    from sklearn import metrics

    predicted = (probability >= threshold).astype(int)
    truth = target.astype(int)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        truth, predicted, average="binary", zero_division=0.0
    )
    both = np.unique(truth).size > 1
    return {
        "accuracy": float((predicted == truth).mean()),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "roc_auc": float(metrics.roc_auc_score(truth, probability)) if both else None,
        "confusion_matrix": metrics.confusion_matrix(truth, predicted, labels=[0, 1]).tolist(),
        "samples": len(truth),
    }


def multiclass(scores: np.ndarray, target: np.ndarray) -> Metrics:
    """Return accuracy, macro f1 and confusion matrix of class scores [sample, class]."""
    from sklearn import metrics

    predicted = scores.argmax(axis=1)
    return {
        "accuracy": float((predicted == target).mean()),
        "f1": float(metrics.f1_score(target, predicted, average="macro", zero_division=0.0)),
        "confusion_matrix": metrics.confusion_matrix(target, predicted, labels=range(scores.shape[1])).tolist(),
        "samples": len(target),
    }


def probability_scores(probability: np.ndarray, target: np.ndarray) -> Metrics:
    """Return Brier score (Brier 1950) and log loss of P(target = 1) [sample]: 0 is perfect."""
    from sklearn import metrics

    # A probability of 0 that came true would cost an infinite log loss.
    clipped = np.clip(probability, 1e-15, 1 - 1e-15)
    return {
        "brier": float(((probability - target) ** 2).mean()),
        "log_loss": float(metrics.log_loss(target, clipped, labels=[0, 1])),
    }


def unbiased_qlike(
    target: np.ndarray, forecast: np.ndarray, valid_target: np.ndarray, valid_forecast: np.ndarray
) -> np.ndarray:
    """Return the QLIKE [window] of log volatilities, whose variances are made unbiased on the validation windows."""
    bias = float(np.log(np.exp(2 * (valid_target - valid_forecast)).mean()))
    return qlike(np.exp(2 * target), np.exp(2 * forecast + bias))


def qlike(variance: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """Return y/f - log(y/f) - 1 of variances y and forecasts f; 0 is perfect (Patton 2011, J. Econometrics 160)."""
    ratio = variance / forecast
    return np.asarray(ratio - np.log(ratio) - 1)


def improvement(loss: np.ndarray, naive_loss: np.ndarray, dates: np.ndarray, *, horizon: int = 1) -> Metrics:
    """Return the share by which the mean loss [sample] is below the naive one's, with a 95% interval.

    The interval is that of a ratio of daily sums (delta method) and uses days, not samples, as observations, since
    losses of the tickers on one day are alike; `intervals` says how it allows for correlated days, and what it covers.
    None if the naive forecast is never wrong.
    """
    days = pd.DataFrame({"date": dates, "loss": loss, "naive": naive_loss})
    daily = days.groupby("date").sum()
    rival = daily["naive"].to_numpy()
    if not rival.any():
        return {"value": None, "low": None, "high": None}
    saved = rival - daily["loss"].to_numpy()
    value = float(saved.sum() / rival.sum())
    margin = half_width((saved - value * rival) / rival.mean(), overlap=horizon, slow=True)
    if margin is None:
        return {"value": value, "low": None, "high": None}
    return {"value": value, "low": value - margin, "high": min(value + margin, 1.0)}


def best_naive(naive: Mapping[str, Metrics], metric: str, *, largest: bool) -> str:
    """Return the name of the naive forecast that is hardest to beat."""
    return (max if largest else min)(naive, key=lambda name: naive[name][metric])


def _positions(position: np.ndarray, index: pd.DataFrame) -> pd.DataFrame:
    """Return positions [day, ticker]; NaN if a ticker has no row."""
    return index.assign(position=position).pivot(index="date", columns="ticker", values="position")


def _turnover(positions: pd.DataFrame, horizon: int) -> np.ndarray:
    """Return the share of the capital that is traded [day], entry from cash included."""
    weights = positions.div(positions.notna().sum(axis=1), axis=0).fillna(0.0)
    return np.asarray(weights.diff(horizon).fillna(weights).abs().sum(axis=1))


def _portfolio_returns(position: np.ndarray, index: pd.DataFrame) -> np.ndarray:
    """Return the simple return [day] over the horizon of the capital spread evenly over the tickers of a day."""
    days, day = np.unique(index["date"].to_numpy(), return_inverse=True)
    earned = position * np.expm1(index["return"].to_numpy(np.float64))
    return np.asarray(np.bincount(day, earned, len(days)) / np.bincount(day, minlength=len(days)))


def _sharpe(returns: np.ndarray, horizon: int) -> float | None:
    """Return the mean over the possible first days of the ratio per trade; first days without a ratio do not count."""
    parts = [returns[first::horizon] for first in range(horizon)]
    ratios = [part.mean() / part.std(ddof=1) for part in parts if _vary(part)]
    return float(np.mean(ratios)) if ratios else None


def annual_sharpe(returns: np.ndarray, horizon: int, year: float) -> float | None:
    """Return the ratio per trade times `year`, the root of the trades of a year; None without one."""
    ratio = _sharpe(returns, horizon)
    return None if ratio is None else ratio * year


def sharpe_interval(returns: np.ndarray, horizon: int, year: float) -> list[float] | None:
    """Return the 95% interval of the annualised ratio by the delta method (Lo 2002, Fin. Analysts J. 58, appendix A).

    With independent days its standard error is Mertens's (2002): sqrt((1 - skew SR + (kurtosis - 1) / 4 SR^2) / T).
    """
    ratio = annual_sharpe(returns, horizon, year)
    if ratio is None:
        return None
    scores = (returns - returns.mean()) / returns.std()
    each = float(returns.mean() / returns.std())
    margin = half_width(scores - each / 2 * (scores**2 - 1), overlap=horizon)
    return None if margin is None else [ratio - margin * year, ratio + margin * year]


def _shape(returns: np.ndarray) -> Metrics:
    """Return the third and fourth standardised moments, as SciPy's `skew` and `kurtosis(fisher=False)`."""
    if not _vary(returns):
        return {"skew": None, "kurtosis": None}
    scores = (returns - returns.mean()) / returns.std()
    return {"skew": float((scores**3).mean()), "kurtosis": float((scores**4).mean())}


def _vary(returns: np.ndarray) -> bool:
    # Rounding leaves a deviation of about 1e-19 if every return is the same.
    return len(returns) > 1 and float(returns.std(ddof=1)) > 1e-12
