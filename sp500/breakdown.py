"""A test of prices in detail: each ticker, each year, portfolios by the size of the forecast, forecast and outcome.

Pure functions on a table with a row per window: date, ticker, forecast, target, loss, naive (the loss of the naive
forecast), right (1 where the direction was right, 0 where not, NaN where there is none) and return (log, over the
horizon). `None` is a number that is not defined on these windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pandas as pd

from sp500 import metrics
from sp500.intervals import half_width
from sp500.runs.details import Bin, Breakdown, Residuals, Score, Strategy

FEWEST = 6
"""Tickers from which portfolios are formed: two in each."""
GROUPS = ((100, 10), (30, 5), (FEWEST, 3))
"""From how many tickers there are how many portfolios: deciles, quintiles, terciles."""
BINS = 10
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def break_down(
    table: pd.DataFrame,
    position: np.ndarray | None,
    *,
    metric: str,
    over: str,
    cost_bps: float,
    horizon: int,
) -> Breakdown:
    """Return the details of a test. `position` [window] is what the model holds; None if it is not traded."""
    positions = {} if position is None else {"model": position, "buy_and_hold": np.ones(len(table))}
    groups = 0 if position is None else count_groups(table)
    if groups:
        positions |= form_portfolios(table, groups)
    years, days = table["date"].to_numpy().astype("datetime64[Y]"), metrics.list_trading_days(table, horizon)
    return {
        "metric": metric,
        "over": over,
        "tickers": [{**score(rows, horizon), "ticker": str(name)} for name, rows in table.groupby("ticker")],
        "years": [{**score(rows, horizon), "year": int(str(year)[:4])} for year, rows in table.groupby(years)],
        "groups": groups,
        "months": days[metrics.find_month_ends(days)].astype("datetime64[D]").astype(str).tolist() if positions else [],
        "strategies": [hold(name, held, table, cost_bps=cost_bps, horizon=horizon) for name, held in positions.items()],
        "slope": _fit_slope(table),
        "bins": list(bin_forecasts(table, horizon)),
        "residuals": describe_residuals(table),
    }


def score(rows: pd.DataFrame, horizon: int) -> Score:
    """Return how these windows were forecast."""
    constant = rows["forecast"].nunique() < 2 or rows["target"].nunique() < 2
    right = rows["right"].dropna()
    loss, naive = rows["loss"].to_numpy(), rows["naive"].to_numpy()
    gain = metrics.improvement(loss, naive, rows["date"].to_numpy(), horizon=horizon)
    return {
        "samples": len(rows),
        "loss": float(loss.mean()),
        "naive_loss": float(naive.mean()),
        "improvement": {"value": gain["value"], "low": gain["low"], "high": gain["high"]},
        # Ranks by pandas: its own Spearman correlation imports scipy.stats, 0.3 s.
        "information_coefficient": None if constant else float(rows["forecast"].rank().corr(rows["target"].rank())),
        "hit_rate": float(right.mean()) if len(right) else None,
    }


def count_groups(table: pd.DataFrame) -> int:
    """Return how many portfolios there are for so many tickers (the median of the dates).

    0 for too few, and where no date has different forecasts.
    """
    dates = table.groupby("date")
    tickers = dates["ticker"].size().median() if dates["forecast"].nunique().max() > 1 else 0
    return next((groups for fewest, groups in GROUPS if tickers >= fewest), 0)


def form_portfolios(table: pd.DataFrame, groups: int) -> dict[str, np.ndarray]:
    """Return the positions [window] of portfolios by the rank of a date's forecasts, and of the last less the first.

    The tickers of a date, ordered by their forecasts, are cut into `groups` of equal number and weight; those with
    equal forecasts stay together. A date with fewer tickers than groups, or one forecast for all, holds nothing.
    """
    dates, forecast = table["date"], table["forecast"]
    by_date = forecast.groupby(dates.to_numpy())
    size = by_date.transform("size")
    ranked = (by_date.transform("nunique") > 1) & (size >= groups)
    group = np.floor((by_date.rank() - 0.5) / size * groups)
    positions = {}
    for number in range(groups):
        member = ((group == number) & ranked).astype(float)
        members = member.groupby(dates.to_numpy()).transform("sum")
        # The capital is spread over all tickers of a date, so each of n/k that are held gets k times its share.
        positions[f"group {number + 1}"] = (member * size / members.where(members > 0, 1)).to_numpy()
    return positions | {"long_short": positions[f"group {groups}"] - positions["group 1"]}


def hold(name: str, position: np.ndarray, table: pd.DataFrame, *, cost_bps: float, horizon: int) -> Strategy:
    """Return what a position [window] earns. Growth and drawdown are of trades from the first date on."""
    gross, turnover = metrics.earn(position, table, horizon=horizon)
    net = gross - turnover * cost_bps / 1e4
    growth = 1 + net[::horizon]
    value = np.cumprod(growth)
    fall = 1 - value / np.maximum(np.maximum.accumulate(value), 1.0)
    days, year = metrics.list_trading_days(table, horizon), metrics.TRADING_DAYS / horizon
    last, when = metrics.find_month_ends(days), days.astype("datetime64[Y]")
    return {
        "name": name,
        "annual_return": float(gross.mean()) * year,
        "annual_return_after_cost": float(net.mean()) * year,
        "sharpe_after_cost": metrics.annual_sharpe(net, horizon, math.sqrt(year)),
        "sharpe_after_cost_interval": metrics.sharpe_interval(net, horizon, math.sqrt(year)),
        "turnover": float(turnover.mean()),
        "max_drawdown": float(fall.max()),
        "years": {str(this): float(growth[when == this].prod()) - 1 for this in np.unique(when)},
        "curve": value[last].tolist(),
        "drawdown": fall[last].tolist(),
    }


def bin_forecasts(table: pd.DataFrame, horizon: int) -> Iterator[Bin]:
    """Yield up to BINS sets of windows with forecasts of about one size, smallest first; none for a constant one."""
    if table["forecast"].nunique() < 2:
        return
    place = np.floor((table["forecast"].rank() - 0.5) / len(table) * BINS)
    for _, rows in table.groupby(place):
        realised = float(rows["target"].mean())
        daily = (rows["target"] - realised).groupby(rows["date"].to_numpy()).sum().to_numpy()
        margin = half_width(daily * len(daily) / len(rows), overlap=horizon)
        ends = (None, None) if margin is None else (realised - margin, realised + margin)
        yield {
            "samples": len(rows),
            "forecast": float(rows["forecast"].mean()),
            "realised": realised,
            "low": ends[0],
            "high": ends[1],
        }


def describe_residuals(table: pd.DataFrame) -> Residuals:
    """Return the distribution of target less forecast."""
    residual = table["target"] - table["forecast"]
    spread = float(residual.std(ddof=0))
    scores = (residual - residual.mean()) / (spread or 1.0)
    daily = residual.groupby(table["date"].to_numpy()).mean()
    varies = len(daily) > 2 and daily.nunique() > 1
    return {
        "mean": float(residual.mean()),
        "deviation": spread,
        "skew": float((scores**3).mean()) if spread else None,
        "kurtosis": float((scores**4).mean()) if spread else None,
        "quantiles": {str(share): float(residual.quantile(share)) for share in QUANTILES},
        "autocorrelation": float(daily.autocorr()) if varies else None,
    }


def add_scores(scores: list[Mapping[str, Score]]) -> dict[str, Score]:
    """Return the scores of several tests by ticker together, such as those of the folds of a walk-forward run.

    The improvement is that of all windows, without an interval; coefficient and hit rate are means over the windows.
    """
    together: dict[str, Score] = {}
    for name in sorted({name for test in scores for name in test}):
        parts = [test[name] for test in scores if name in test]
        samples = sum(part["samples"] for part in parts)
        loss, naive = (sum(part[key] * part["samples"] for part in parts) for key in ("loss", "naive_loss"))
        together[name] = {
            "samples": samples,
            "loss": loss / samples,
            "naive_loss": naive / samples,
            "improvement": {"value": 1 - loss / naive if naive else None, "low": None, "high": None},
            "information_coefficient": _average(parts, "information_coefficient"),
            "hit_rate": _average(parts, "hit_rate"),
        }
    return together


def _average(parts: list[Score], key: Literal["information_coefficient", "hit_rate"]) -> float | None:
    known = [(value, part["samples"]) for part in parts if (value := part[key]) is not None]
    return sum(value * count for value, count in known) / sum(count for _, count in known) if known else None


def _fit_slope(table: pd.DataFrame) -> float | None:
    if table["forecast"].nunique() < 2:
        return None
    forecast, target = table["forecast"] - table["forecast"].mean(), table["target"] - table["target"].mean()
    return float((forecast * target).sum() / (forecast**2).sum())
