"""Forecasts that were made elsewhere, judged as a trained model is: the same test, rivals, intervals and costs.

What made them is not known, so neither are the gaps between its training and the test, nor whether it saw the test.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pyarrow as pa

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import ConfigError, DataError
from sp500.machine.disk import file_digest
from sp500.runs.details import Elsewhere
from sp500.runs.record import RunRecord, make_record
from sp500.runs.results import Improvement, Metrics
from sp500.runs.store import Run
from sp500.tasks import catalog

COLUMNS = ("date", "ticker", "forecast")
Z = NormalDist().inv_cdf(0.975)


def judge(config: RunConfig, run: Run, *, file: Path, tries: int, arm: str) -> RunRecord:
    """Judge the forecasts of a file on the test of these settings, and describe them as a run.

    `tries`: configs among which the file's is the best. Raises DataError for a file without forecasts of the test.
    """
    config = catalog.resolve(config)
    task, given = catalog.price_task(config), read_forecasts(file)
    if config.data.npz_path:
        raise ConfigError("data.npz_path has no dates, by which forecasts are matched; leave it out")
    prepared = task.read(config)
    whole = replace(prepared.dataset("float64"), valid=None)
    dataset, forecast = match(given, whole, prepared.table.dates, file)
    output = task.invert_forecast(forecast, dataset)
    table = task.predictions(output, dataset.test, dataset)
    if not np.allclose(table["forecast"], forecast, rtol=1e-9, atol=1e-12):
        raise ConfigError(
            f"task {config.task} has a forecast of its own; write its inverse too, invert_forecast(forecast, dataset)"
        )
    scores = task.judge({"test": output}, dataset)
    table.to_parquet(run.path / "predictions.parquet")
    note = f"{file.name} was made elsewhere: gaps and leaks not checked."
    card = {**dataset.card, "notes": [*dataset.card.get("notes", []), note], "windows": {"test": len(dataset.test)}}
    details = task.break_down(output, dataset, scores["test"])
    record = make_record(
        config,
        name=run.name,
        experiment="judge",
        arm=arm,
        data=card,
        metrics=scores,
        breakdown=details,
        elsewhere=_describe(file, (len(given), len(dataset.test), len(whole.test)), scores["test"], tries),
    )
    return record.model_copy(update={"fingerprint": mix(record.fingerprint, file)})


def _describe(file: Path, counts: tuple[int, int, int], test: Metrics, tries: int) -> Elsewhere:
    excess = test.get("excess")
    deflated = metrics.deflate_unknown(excess, tries) if excess and tries > 1 else None
    return {
        "file": file.name,
        "sha256": hash_file(file),
        "forecasts": counts[0],
        "judged": counts[1],
        "windows": counts[2],
        "tries": tries,
        "chance": find_chance(test.get("improvement"), tries),
        "expected_max_sharpe": deflated["expected_max"] if deflated else None,
        "sharpe_probability": deflated["probability"] if deflated else None,
    }


def hash_file(file: Path) -> str:
    """Return the hash of a file. Raises ConfigError if it cannot be read."""
    try:
        return file_digest(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None


def mix(fingerprint: str, file: Path) -> str:
    """Return a fingerprint of settings and the file."""
    return hashlib.sha256(f"{fingerprint} {hash_file(file)}".encode()).hexdigest()[:16]


def read_forecasts(file: Path) -> pd.DataFrame:
    """Return the columns date, ticker and forecast of a Parquet or CSV file. Raises DataError that names row and rule.

    The names of tickers are text, as in the prices.
    """
    is_csv = file.suffix.lower() == ".csv"
    try:
        # As text: a ticker may be NA or 007, and a date 20200102.
        text = {"date": str, "ticker": str}
        table = pd.read_csv(file, dtype=text, keep_default_na=False) if is_csv else pd.read_parquet(file)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read as {'CSV' if is_csv else 'Parquet'}: {error}") from error
    if missing := [name for name in COLUMNS if name not in table]:
        raise DataError(
            f"{file} has no column {missing[0]}; expected {', '.join(COLUMNS)}, got {', '.join(map(str, table))}"
        )
    # The date as written: a time zone does not move it to another day.
    dates = pd.to_datetime(table["date"].astype(str).str[:10], errors="coerce").dt.normalize()
    numbers = pd.to_numeric(table["forecast"], errors="coerce")
    clean = pd.DataFrame({"date": dates, "ticker": table["ticker"].astype(str), "forecast": numbers})
    faults = {
        "date": dates.isna(),
        "forecast": ~np.isfinite(numbers.to_numpy(float)),
        "date and ticker, which an earlier row has,": clean.duplicated(["date", "ticker"]),
    }
    for name, wrong in faults.items():
        if np.any(wrong):
            row = int(np.argmax(wrong))
            raise DataError(f"{file}, row {row + 1}: invalid {name} {table.iloc[row][list(COLUMNS)].to_dict()}")
    return clean


def match(given: pd.DataFrame, dataset: Dataset, dates: np.ndarray, file: Path) -> tuple[Dataset, np.ndarray]:
    """Return the dataset with the test windows that have a forecast, and these forecasts [window].

    Raises DataError, with the split that would have some, where no window has one.
    """
    test = dataset.test
    assert test.index is not None
    keys = test.index[["date", "ticker"]].assign(date=pd.to_datetime(test.index["date"]).astype("datetime64[ns]"))
    found = keys.merge(given.astype({"date": "datetime64[ns]"}), how="left", on=["date", "ticker"])["forecast"]
    known = found.notna().to_numpy()
    if not known.any():
        first, last = given["date"].min(), given["date"].max()
        share = float((dates >= first.to_datetime64()).mean())
        fits = f"--data.test-fraction {min(math.ceil(share * 1e4) / 1e4, 0.9999)} includes them" if share else ""
        span = f"{keys['date'].min():%Y-%m-%d} to {keys['date'].max():%Y-%m-%d}"
        raise DataError(
            f"{file} has no forecast of the test, {span}, for {', '.join(keys['ticker'].unique()[:3])}...: it has "
            f"{first:%Y-%m-%d} to {last:%Y-%m-%d} for {', '.join(given['ticker'].unique()[:3])}... {fits}"
        )
    rows = np.flatnonzero(known)
    index = test.index.iloc[rows].reset_index(drop=True)
    part = Windows(test.rows, test.starts[rows], test.targets[rows], test.length, index)
    return replace(dataset, test=part), found.to_numpy(float)[rows]


def find_chance(gain: Improvement | None, tries: int) -> float | None:
    """Return the chance of as large an improvement for the best of so many tries without skill.

    By the standard error that the improvement's interval says. None without an interval.
    """
    if gain is None or gain["value"] is None or gain["low"] is None or gain["value"] <= gain["low"]:
        return None
    single = 1 - NormalDist().cdf(gain["value"] * Z / (gain["value"] - gain["low"]))
    return 1 - (1 - single) ** tries
