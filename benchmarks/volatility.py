"""Forecasts of volatility by any kinds of model, against every rival, over walk-forward folds.

    python benchmarks/volatility.py --models linear mlp lstm --seeds 2 --out index.json
    python benchmarks/volatility.py --tickers stocks --horizon 5 --out stocks.json
    python benchmarks/volatility.py --source europe.csv --folds 4 --out europe.json

Each kind is trained as `experiments/walk_forward.py --task volatility` does, once per seed. The losses of all folds are
pooled; a model's loss is the mean over its seeds. The table gives by how many percent it is below each rival's, with
the 95% interval of `sp500.metrics.improvement`: days are the observations, and overlap and persistence widen it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parent.parent
KEY = ["date", "ticker"]


@contextlib.contextmanager
def record_folds() -> Iterator[list[tuple[pd.DataFrame, pd.DataFrame]]]:
    """Yield a list that gets, of every fold that is judged, the forecasts for validation and for the test."""
    from sp500.tasks.volatility import Volatility

    judge, folds = Volatility.judge, []

    def judge_and_keep(task: Any, outputs: dict[str, np.ndarray], dataset: Any) -> Any:
        valid = task.predictions(outputs["valid"], dataset.valid, dataset)
        folds.append((valid, task.predictions(outputs["test"], dataset.test, dataset)))
        return judge(task, outputs, dataset)

    Volatility.judge = judge_and_keep  # type: ignore[assignment, method-assign]
    try:
        yield folds
    finally:
        Volatility.judge = judge  # type: ignore[method-assign]


@contextlib.contextmanager
def fit_garch_once() -> Iterator[None]:
    """Keep the forecasts of the GARCH models: they are the same for every kind of model and seed."""
    from sp500.tasks import garch

    forecast, kept = garch.forecast, {}

    def look_up(close: pd.DataFrame, horizon: int, *, asymmetric: bool) -> pd.DataFrame:
        key = (close.to_numpy().tobytes(), horizon, asymmetric)
        if key not in kept:
            kept[key] = forecast(close, horizon, asymmetric=asymmetric)
        return kept[key]

    garch.forecast = look_up
    try:
        yield
    finally:
        garch.forecast = forecast


def list_losses(valid: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """Return MSE and QLIKE [window, (forecast, loss)] of a fold; QLIKE as the task judges by it."""
    from sp500 import metrics

    names = [name for name in map(str, test) if name == "forecast" or name.startswith("naive_")]
    losses: dict[tuple[str, str], pd.Series] = {}
    for name in names:
        losses[name, "mse"] = (test[name] - test["target"]) ** 2
        losses[name, "qlike"] = pd.Series(
            metrics.unbiased_qlike(
                *(table[column].to_numpy() for table in (test, valid) for column in ("target", name))
            )
        )
    return pd.DataFrame(losses).set_index(pd.MultiIndex.from_frame(test[KEY]))


def run(kind: str, seed: int, asked: argparse.Namespace, runs: Path) -> tuple[pd.DataFrame, list[int]]:
    """Train a kind of model on every fold, and return the pooled losses and the best epoch of each fold."""
    import sp500

    data = {"horizon": asked.horizon, "source": asked.source, "tickers": tuple(asked.tickers)}
    data |= {"start": asked.start, "end": asked.end}
    with record_folds() as folds:
        record = sp500.walk_forward(
            name=f"{kind}-{seed}",
            runs_dir=runs,
            task="volatility",
            data=data,
            volatility={"garch": asked.garch},
            model={"kind": kind},
            train={"seed": seed},
            folds=asked.folds,
            test_days=asked.test_days,
        )
    epochs = [row.get("best_epoch", -1) for row in record.folds or ()]
    return pd.concat([list_losses(valid, test) for valid, test in folds]), epochs


def compare(losses: pd.DataFrame, horizon: int) -> dict[str, Any]:
    """Return the mean loss of the model and, against each rival, the improvement."""
    from sp500 import metrics

    days = losses.index.get_level_values("date").to_numpy()
    rivals = [name for name in losses.columns.get_level_values(0).unique() if name != "forecast"]
    row: dict[str, Any] = {name: losses["forecast", name].mean() for name in ("mse", "qlike")}
    for name in rivals:
        row[name.removeprefix("naive_")] = {
            metric: {"loss": losses[name, metric].mean()}
            | metrics.improvement(
                losses["forecast", metric].to_numpy(), losses[name, metric].to_numpy(), days, horizon=horizon
            )
            for metric in ("mse", "qlike")
        }
    return row


def main(arguments: Sequence[str]) -> int:
    """Print a line per model and rival, and write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["linear", "mlp", "lstm"], help="kinds of model")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each kind (default: 2)")
    parser.add_argument("--source", default="bundled", help="bundled | yfinance | a file of prices")
    parser.add_argument("--tickers", nargs="*", default=[], help="series (default: the index, or all of a file)")
    parser.add_argument("--start", help="first date of the prices")
    parser.add_argument("--end", help="last date of the prices")
    parser.add_argument("--horizon", type=int, default=5, help="days ahead (default: 5)")
    parser.add_argument("--folds", type=int, default=18, help="folds, back from the last date (default: 18)")
    parser.add_argument("--test-days", type=int, default=252, help="sessions of each test (default: 252)")
    parser.add_argument("--no-garch", dest="garch", action="store_false", help="without the GARCH models")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    asked = parser.parse_args(arguments)
    settings = {key: value for key, value in vars(asked).items() if key != "out"}
    result: dict[str, Any] = {"settings": settings, "models": {}}
    with tempfile.TemporaryDirectory() as folder, fit_garch_once():
        for kind in asked.models:
            seeds = [run(kind, seed, asked, Path(folder)) for seed in range(asked.seeds)]
            losses = [table for table, _ in seeds]
            row = compare(sum(losses[1:], losses[0]) / len(losses), asked.horizon)
            row["seeds"] = [{"mse": table["forecast", "mse"].mean(), "best_epochs": epochs} for table, epochs in seeds]
            dates = losses[0].index.get_level_values("date")
            result |= {"first": f"{dates.min():%Y-%m-%d}", "last": f"{dates.max():%Y-%m-%d}", "windows": len(dates)}
            result["models"][kind] = row
            for rival, gains in row.items():
                for metric, gain in gains.items() if isinstance(gains, dict) else ():
                    ends = f"({gain['low']:+.1%} to {gain['high']:+.1%})"
                    print(f"{kind:10} {rival:6} {metric:5} {gain['value']:+.1%} {ends}", flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
