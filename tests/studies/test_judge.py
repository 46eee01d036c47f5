"""Forecasts made elsewhere get the verdict that a run with the same forecasts has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import price_files
import pytest

import sp500
from sp500.cli import main as cli
from sp500.commands.experiments import compare
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.studies.judge import read_forecasts

FLAGS = ["--data.source", "quant.csv", "--data.window", "5"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    price_files.write(tmp_path / "quant.csv")


def train(task: str, **data: Any) -> RunRecord:
    settings = {"source": "quant.csv", "window": 5, "features": ("log_return", "news"), **data}
    return sp500.train(name="own", task=task, data=settings, model={"kind": "linear"}, train={"epochs": 3, "lr": 0.01})


def judge(*words: str) -> RunRecord:
    assert cli(["judge", *words]) == 0
    record = RunStore(Path("runs")).record("else")
    assert record is not None
    return record


def test_forecasts_of_log_volatility_are_in_its_own_units():
    data = {"source": "quant.csv", "window": 5}
    own = sp500.train(name="own", task="volatility", data=data, model={"kind": "linear"}, train={"epochs": 2})
    record = judge("runs/own/predictions.parquet", "--name", "else", "--task", "volatility", *FLAGS)
    assert record.metrics["test"]["mse"] == pytest.approx(own.metrics["test"]["mse"], rel=1e-6)
    assert record.breakdown is not None
    assert record.breakdown["over"] == own.metrics["test"]["improvement"]["over"]


@pytest.mark.parametrize("dates", [("2020-01-02 20:00-05:00", "2020-01-03 20:00-05:00"), ("20200102", "20200103")])
def test_names_and_dates_of_a_file_stay_as_they_are_written(tmp_path, dates):
    file = tmp_path / "f.CSV"
    file.write_text(f"date,ticker,forecast\n{dates[0]},NA,0.1\n{dates[1]},007,0.2\n")
    table = read_forecasts(file)
    assert list(table["ticker"]) == ["NA", "007"]
    assert list(table["date"].dt.strftime("%Y-%m-%d")) == ["2020-01-02", "2020-01-03"]


@pytest.mark.parametrize(("task", "file"), [("returns", "f.parquet"), ("direction", "f.csv")])
def test_forecasts_of_a_run_get_its_verdict_and_a_row_next_to_it(task, file):
    own = train(task, horizon=2)
    table = pd.read_parquet("runs/own/predictions.parquet").sample(frac=1, random_state=0)
    table.to_csv(file, index=False) if file.endswith(".csv") else table.to_parquet(file)
    named = ["--data.features", "log_return", "news", "--task", task, "--horizon", "2"]
    record = judge(file, "--name", "else", "--tries", "40", *named, *FLAGS)
    gain, other = record.metrics["test"]["improvement"], own.metrics["test"]["improvement"]
    assert gain["over"] == other["over"]
    assert [gain[key] for key in ("value", "low", "high")] == pytest.approx(
        [other[key] for key in ("value", "low", "high")], abs=1e-6
    )
    assert record.metrics["naive"] == own.metrics["naive"]
    facts = record.elsewhere
    assert facts is not None
    assert (facts["judged"], facts["windows"], facts["tries"]) == (len(table), len(table), 40)
    error = (gain["value"] - gain["low"]) / 1.959963984540054
    assert facts["chance"] == pytest.approx(1 - NormalDist().cdf(gain["value"] / error) ** 40, rel=1e-6, abs=1e-12)
    excess = record.metrics["test"]["excess"]
    luck = 0.4227843351 * NormalDist().inv_cdf(1 - 1 / 40) + 0.5772156649 * NormalDist().inv_cdf(1 - 1 / (40 * math.e))
    assert facts["expected_max_sharpe"] == pytest.approx(luck / math.sqrt(excess["observations"]), rel=1e-6)
    assert compare.main([]) == 0
    rows = json.loads(Path("runs/report/report.json").read_text())["models"]
    assert len({row["group"] for row in rows}) == 1
    assert {row["run"]: row["name"] for row in rows if row["run"]} == {"own": "linear", "else": file}
    assert "(made elsewhere: gaps and leaks not checked)" in Path("runs/report/report.md").read_text()


def test_part_of_the_test_is_judged_on_that_part():
    train("returns")
    table = pd.read_parquet("runs/own/predictions.parquet").iloc[10:70]
    table.to_parquet("f.parquet")
    record = judge("f.parquet", "--name", "else", *FLAGS)
    assert record.metrics["test"]["samples"] == 60
    assert record.metrics["test"]["mse"] == pytest.approx(((table["forecast"] - table["target"]) ** 2).mean(), rel=1e-6)


def change(**columns: Any) -> pd.DataFrame:
    rows = {"date": ["2017-06-01", "2017-06-02"], "ticker": ["AAA", "AAA"], "forecast": [0.1, 0.2]}
    return pd.DataFrame(rows | columns)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (change().drop(columns="ticker"), "has no column ticker; expected date, ticker, forecast"),
        (change(forecast=[0.1, np.nan]), "row 2: invalid forecast"),
        (change(date=["2017-06-01", "2017-06-01"]), "row 2: invalid date and ticker"),
        (change(date=["2017-06-01", "soon"]), "row 2: invalid date"),
        (change(date=["2015-06-01", "2015-06-02"]), "has no forecast of the test"),
    ],
)
def test_file_with_a_fault_is_refused_with_its_row(table, message, capsys):
    table.to_csv("f.csv", index=False)
    assert cli(["judge", "f.csv", "--name", "else", *FLAGS]) == 3
    assert message in capsys.readouterr().err


def test_forecasts_of_earlier_dates_are_judged_after_the_advice(capsys):
    dates = price_files.make_table()["date"].unique()[300:420]
    pd.DataFrame({"date": dates, "ticker": "BBB", "forecast": 0.001}).to_csv("f.csv", index=False)
    assert cli(["judge", "f.csv", "--name", "early", *FLAGS]) == 3
    advice = capsys.readouterr().err.partition("--data.test-fraction ")[2].split()[0]
    record = judge("f.csv", "--name", "else", "--data.test-fraction", advice, *FLAGS)
    assert record.elsewhere is not None
    assert record.elsewhere["judged"] == 120
