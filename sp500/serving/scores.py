"""Logged forecasts compared with what came, each model next to the naive forecasts and to the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from sp500 import metrics

NAIVE = "naive_"


def score_answers(
    answers: pd.DataFrame, close: pd.DataFrame, *, threshold: float, horizon: int
) -> list[dict[str, object]]:
    """One row per run and role: its error and those of the naive forecasts on the answers whose prices are known.

    `answers` are those of the log; `close` [date, ticker]; `threshold` the probability from which a forecast of the
    direction counts as up. Of answers with the same ticker and date the last is taken. Mean squared error for returns,
    share of wrong directions for probabilities, and the improvement with its interval, all as training judges them.
    """
    dates = {name: pd.to_datetime(answers[name]) for name in ("as_of", "session")}
    table = answers.assign(**dates).drop_duplicates(["run", "version", "role", "ticker", "as_of"], keep="last")
    prices = close.rename_axis(index="date", columns="ticker").melt(ignore_index=False, value_name="close")
    log = prices.assign(log=np.log(prices["close"])).drop(columns="close").reset_index()
    for name in ("as_of", "session"):
        known = log.rename(columns={"date": name, "log": f"log_{name}"})
        table = table.merge(known, how="left", on=["ticker", name])
    table["target"] = table["log_session"] - table["log_as_of"]
    groups = table.groupby(["version", "run", "role"], sort=False)
    return [
        {"version": version, "run": run, "role": role, **_row(group, threshold, horizon)}
        for (version, run, role), group in groups
    ]


def _row(group: pd.DataFrame, threshold: float, horizon: int) -> dict[str, object]:
    known = group.dropna(subset="target").sort_values(["as_of", "ticker"])
    counts: dict[str, object] = {"answers": len(group), "judged": len(known)}
    if known.empty:
        return counts
    direction = str(known["unit"].iloc[0]).startswith("probability")
    loss = _direction_loss(known["target"] > 0, threshold) if direction else _return_loss(known["target"])
    naive = {
        str(name).removeprefix(NAIVE): loss(known[name])
        for name in known.columns
        if str(name).startswith(NAIVE) and known[name].notna().all()
    }
    own, errors = loss(known["forecast"]), {name: float(losses.mean()) for name, losses in naive.items()}
    over = min(errors, key=lambda name: errors[name])
    gain = metrics.improvement(own, naive[over], known["as_of"].to_numpy(), horizon=horizon)
    metric = "error_rate" if direction else "mse"
    return {
        **counts,
        metric: float(own.mean()),
        "naive": errors,
        "improvement": {"over": over, "metric": metric, **gain},
    }


def _return_loss(target: pd.Series) -> Callable[[pd.Series], np.ndarray]:
    return lambda forecast: ((forecast - target) ** 2).to_numpy(np.float64)


def _direction_loss(rose: pd.Series, threshold: float) -> Callable[[pd.Series], np.ndarray]:
    return lambda forecast: ((forecast >= threshold) != rose).to_numpy(np.float64)
