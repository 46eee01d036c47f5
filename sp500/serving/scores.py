"""Logged forecasts compared with what came, each model next to the naive forecasts and to the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sp500 import metrics
from sp500.config import RunConfig
from sp500.serving.answers import KEY, AnswerLog
from sp500.tasks.prices import PriceTask

NAIVE = "naive_"
TRACES = ("trace_0", "trace_1", "trace_2")
"""Columns of the log that identify the prices of a forecast: see `trace_returns`."""
TOLERANCE = 0.01
"""Between traces of the same prices. Cents of a price of 20 make a third of it, made-up prices ten times as much."""


def trace_returns(returns: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return three sums [..., 3] of log returns [day][...], oldest first, with pseudo-random weights between -1 and 1.

    Other prices have other sums, and those of another source, rounded or adjusted otherwise, nearly the same.
    """
    days = np.arange(len(returns), 0, -1.0) ** 2  # from the last one back, since the first may vary
    weights = np.cos(np.outer(days, np.sqrt([2.0, 3.0, 5.0])))
    parts = (np.asarray(part)[..., None] * weight for part, weight in zip(returns, weights, strict=True))
    return np.asarray(sum(parts))


def is_scored(task: object) -> bool:
    """Return whether answers are forecasts of returns, which prices judge: not of a target or a loss of its own."""
    return not isinstance(task, PriceTask) or task.is_scored


def score_log(log: AnswerLog, close: pd.DataFrame, config: RunConfig) -> list[dict[str, object]]:
    """Run `score_answers` on a log and free its memory afterwards: a server runs for weeks."""
    try:
        return score_answers(log.read(), close, threshold=config.eval.threshold, horizon=config.data.horizon)
    finally:
        pa.default_memory_pool().release_unused()


def score_answers(answers: pa.Table, close: pd.DataFrame, *, threshold: float, horizon: int) -> list[dict[str, object]]:
    """Return a row per run and role: its error and the naive forecasts' on the answers whose prices are known.

    `answers` are the last ones of the log; `close` [date, ticker]; `threshold` the probability from which a forecast of
    the direction counts as up. Mean squared error for returns, share of wrong directions for probabilities, and the
    improvement with its interval, all as training judges them. Answers to other prices than `close` are not judged:
    a client could spoil the score with prices of its own.
    """
    if not answers:
        return []
    groups = ["version", "run", "role"]
    counts = answers.group_by(groups, use_threads=False).aggregate([([], "count_all")]).to_pandas()
    known = _add_targets(answers, close)
    rows = []
    for group in counts.itertuples(index=False):
        same = (known["version"] == group.version) & (known["run"] == group.run) & (known["role"] == group.role)
        facts = {name: getattr(group, name) for name in groups} | {"answers": int(group.count_all)}
        asked = known[same & known["same_prices"]].drop_duplicates([*KEY], keep="last")
        rows.append(
            {**facts, "other_prices": int((~known["same_prices"][same]).sum()), **_judge(asked, threshold, horizon)}
        )
    return rows


def _add_targets(answers: pa.Table, close: pd.DataFrame) -> pd.DataFrame:
    """Return the answers with a known outcome, and add it.

    Others never become objects: there may be a million fake tickers.
    """
    tickers = answers["ticker"].cast(pa.string())
    named = answers.set_column(answers.column_names.index("ticker"), "ticker", tickers)
    table: pd.DataFrame = named.filter(pc.is_in(tickers, pa.array(close.columns.astype(str)))).to_pandas()
    prices = np.log(close.to_numpy())
    columns = close.columns.astype(str).get_indexer(pd.Index(table["ticker"].astype(str)))
    days = {name: pd.DatetimeIndex(table[name].astype(str)) for name in ("as_of", "session")}
    rows = {name: close.index.get_indexer(day.astype(close.index.dtype)) for name, day in days.items()}
    logs = {name: np.where(row < 0, np.nan, prices[row, columns]) for name, row in rows.items()}
    same = _compare_prices(table, prices, rows["as_of"], columns)
    target = logs["session"] - logs["as_of"]
    known: pd.DataFrame = table.assign(as_of=days["as_of"], target=target, same_prices=same)
    return known.dropna(subset="target")


def _compare_prices(table: pd.DataFrame, prices: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return which answers [row] were for these log prices [date, ticker].

    Earlier versions kept no traces: all were.
    """
    same = np.ones(len(table), bool)
    if "days" not in table:
        return same
    returns = np.diff(prices, axis=0, prepend=np.nan)
    for days in table["days"].dropna().unique().astype(int):
        chosen = np.flatnonzero((table["days"] == days) & (rows >= days))
        known = trace_returns([returns[rows[chosen] - back, columns[chosen]] for back in reversed(range(days))])
        kept = table[[*TRACES]].to_numpy()
        same[table["days"] == days] = False
        same[chosen] = (np.abs(known - kept[chosen]) < TOLERANCE).all(axis=1)
    return same


def _judge(known: pd.DataFrame, threshold: float, horizon: int) -> dict[str, object]:
    if known.empty:
        return {"judged": 0}
    known = known.sort_values(["as_of", "ticker"])
    direction = str(known["unit"].iloc[0]).startswith("probability")

    def loss(forecast: pd.Series) -> np.ndarray:
        wrong = (forecast >= threshold) != (known["target"] > 0) if direction else (forecast - known["target"]) ** 2
        return wrong.to_numpy(np.float64)

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
        "judged": len(known),
        metric: float(own.mean()),
        "naive": errors,
        "improvement": {"over": over, "metric": metric, **gain},
    }
