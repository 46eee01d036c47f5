"""Walk-forward: one config re-trained on every fold of the dates, one fold after another or side by side on Ray.

Each fold fits everything again on its own training dates: scaling, weights, the choice of the epoch. A fold is on the
disk (`folds.jsonl`) the moment it ends, so a stopped run continues with those that are missing. A worker is sent
prices and features whole and cuts a fold's windows itself, which is less to send than windows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev

from sp500.config import RunConfig
from sp500.data.folds import Folds
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, SP500Error, attempt
from sp500.formatting import some
from sp500.runs import checksums
from sp500.runs.checksums import append_line, read_lines
from sp500.runs.record import RunRecord, clock_start, make_record
from sp500.runs.results import FoldDates, FoldRow, Metrics, Spread
from sp500.runs.store import Run
from sp500.tasks import catalog
from sp500.training import estimator, refit
from sp500.training.fitting import fit_model
from sp500.training.loop import FitResult
from sp500.training.worker import SoloWorker, device

Keep = Callable[[FoldRow], None]


def record(config: RunConfig, run: Run, folds: Folds, on_row: Keep | None = None) -> RunRecord:
    """Train and judge every fold that the run's folder does not hold yet, `config.num_workers` at once on Ray.

    `on_row` gets each fold's row, kept ones first. A fold that fails is a row with the reason; raises SP500Error
    when all do.
    """
    begun = datetime.now(UTC)
    rows, cluster = _run_all(config, folds, run, on_row or (lambda row: None))
    good = [row for row in rows if row["status"] == "ok"]
    if not good:
        raise SP500Error(
            "\n".join([f"all {some(len(rows), 'fold')} failed:", *(f"  {row['reason']}" for row in rows[:5])])
        )
    largest = max(row["peak_worker_bytes"] for row in good)
    return make_record(
        config,
        name=run.name,
        experiment="walk_forward",
        arm="ray" if config.num_workers else "solo",
        setup_seconds=(begun - clock_start()).total_seconds(),
        train_seconds=(datetime.now(UTC) - begun).total_seconds(),
        cluster=cluster,
        samples=sum(row["samples"] for row in good),
        peak_memory_bytes=largest,
        peak_worker_bytes=largest,
        device=good[0]["device"],
        data=folds.card,
        metrics=summary(rows),
        folds=rows,
    )


def fold(config: RunConfig, folds: Folds, number: int) -> FoldRow:
    """Train and judge one fold, counted from 1; a failed one gives its reason and spoils no other."""
    started = time.perf_counter()

    def fail(error: Exception) -> FoldRow:
        """Return the row of a fold that failed."""
        reason = str(error) if isinstance(error, SP500Error) else f"{type(error).__name__}: {error}"
        return _failed_row(folds.dates(number), reason)

    row = attempt(lambda: _train_fold(config, folds, number), fail)
    row["seconds"] = time.perf_counter() - started
    return row


def read_rows(path: Path, sha256: str) -> dict[int, FoldRow]:
    """Read the rows of the folds that ended well, by number; failed ones are tried again.

    A line cut off by a kill counts for nothing. Raises ConfigError for a damaged line or folds on other prices.
    """
    if any(line["data"] != sha256 for line in read_lines(path)):
        raise ConfigError(f"{path} holds folds on other prices than now; choose another --name")
    return {row["fold"]: row for row in checksums.read_rows(path, FoldRow) if row["status"] == "ok"}


def summary(rows: Sequence[FoldRow]) -> Metrics:
    """Return mean, standard deviation and count over the folds of every metric of the model and of the naive forecasts.

    `improvement` is that over the best naive forecast of each fold, `better` in how many folds a trained model's is
    above zero.
    """
    good = [row for row in rows if row["status"] == "ok"]
    gains = [(row["improvement"]["value"], row["best_epoch"]) for row in good]
    names = good[0]["naive"] if good else ()
    return {
        "folds": len(rows),
        "failed": len(rows) - len(good),
        "better": sum(gain is not None and gain > 0 and best_epoch != 0 for gain, best_epoch in gains),
        "improvement": _spread([{"value": gain} for gain, _ in gains]).get("value"),
        "test": _spread([row["test"] for row in good]),
        "naive": {name: _spread([row["naive"][name] for row in good]) for name in names},
    }


def _spread(rows: Sequence[Mapping[str, object]]) -> dict[str, Spread]:
    numbers: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                numbers.setdefault(key, []).append(value)
    return {
        key: {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None, "count": len(values)}
        for key, values in numbers.items()
    }


def _failed_row(dates: FoldDates, reason: str) -> FoldRow:
    return {
        "fold": dates["fold"],
        "splits": dates["splits"],
        "blind": dates["blind"],
        "status": "failed",
        "reason": reason,
        "seconds": None,
    }


def _train_fold(config: RunConfig, folds: Folds, number: int) -> FoldRow:
    # A fold trains alone, however many train at once.
    config = config.run_config().model_copy(update={"num_workers": 0})
    task = catalog.price_task(config)
    hooks = task.hooks(config)
    dataset = folds.dataset(number, config.train.dtype, direction=task.direction, hooks=hooks)

    estimator.check(config, dataset)

    def fit_one(config: RunConfig, dataset: Dataset, folder: Path) -> FitResult:
        del folder  # a stopped fold starts from the beginning
        return fit_model(task, dataset, config, SoloWorker(device(config.train.device)))

    again = config.train.refit
    whole = None
    if again:
        whole = folds.dataset(number, config.train.dtype, direction=task.direction, refit=True, hooks=hooks)
    result, refitted, _ = refit.fit_with(fit_one, task, config, dataset, folder=Path("none"), whole=whole)
    metrics = task.judge(result.outputs, dataset)
    return {
        **folds.dates(number),
        "status": "ok",
        "reason": "",
        "seconds": None,
        "windows": dataset.card["windows"],
        "best_epoch": result.best_epoch,
        "epochs": len(result.epochs),
        "refit": refitted,
        "samples": result.samples,
        "breakdown": task.break_down(result.outputs["test"], dataset, metrics["test"]),
        "improvement": metrics["test"].pop("improvement"),
        "test": metrics["test"],
        "naive": metrics["naive"],
        "device": result.device,
        "peak_worker_bytes": result.peak_worker_bytes,
    }


def _run_all(config: RunConfig, folds: Folds, run: Run, on_row: Keep) -> tuple[list[FoldRow], dict[str, float] | None]:
    """Run all folds. Returns their rows in order of date, and the cluster's resources if Ray ran them."""
    sha256, path = folds.prices.sha256, run.path / "folds.jsonl"
    rows = read_rows(path, sha256)
    for row in rows.values():
        on_row(row)

    def keep(row: FoldRow) -> None:
        append_line(path, json.dumps({**row, "data": sha256}))
        rows[row["fold"]] = row
        on_row(row)

    missing = [number for number in range(1, len(folds) + 1) if number not in rows]
    cluster = None
    if config.num_workers:
        from sp500.distributed.tasks import run_tasks

        def keep_result(number: int, row: FoldRow | Exception) -> None:
            if isinstance(row, Exception):
                row = _failed_row(folds.dates(number), f"{type(row).__name__}: {row}".splitlines()[0])
            keep(row)

        cluster = run_tasks(fold, config.run_config(), folds, missing, run=run, on_result=keep_result)
    else:
        for number in missing:
            keep(fold(config, folds, number))
    return [rows[number] for number in sorted(rows)], cluster
