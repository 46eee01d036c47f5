"""The task volatility through every door: walk-forward, search, scale, workers of Ray, a request to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from http_server import serving

import sp500
from sp500.runs.store import RunStore

SMALL: dict[str, Any] = {
    "task": "volatility",
    "data": {"start": "2014-01-02", "window": 5},
    "model": {"kind": "linear"},
    "train": {"epochs": 3, "dtype": "float64"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    sp500.train(name="alone", runs_dir=folder, **SMALL)
    return folder


def test_request_gets_the_forecast_of_the_test_and_its_naive_forecasts(runs, bundled):
    row = pd.read_parquet(runs / "alone" / "predictions.parquet").iloc[-1]
    days = bundled.close.loc[: row["date"]].iloc[-257:, 0]
    body = {"ticker": "^GSPC", "dates": [f"{day:%Y-%m-%d}" for day in days.index], "close": days.tolist()}
    with serving(runs, "alone") as (client, _, _):
        model = client.get("/v1/models").json()["champion"]
        assert (model["columns"], model["history"], model["refuses"]) == (["close"], 257, "")
        answer = client.post("/v1/forecast", body).json()
        assert answer["unit"] == "log volatility of a day"
        assert answer["forecast"] == pytest.approx(row["forecast"], abs=1e-9)
        assert answer["naive"] == {
            name: pytest.approx(row[f"naive_{name}"], abs=1e-9) for name in ("last", "mean", "ewma", "har")
        }


def test_workers_of_ray_give_the_same_metrics(runs, ray_cluster):
    alone = RunStore(runs).record("alone")
    assert alone is not None
    spread = sp500.train(name="spread", runs_dir=runs, num_workers=2, **SMALL)
    assert alone.best_epoch
    for name in ("mse", "qlike", "r2"):
        assert spread.metrics["test"][name] == pytest.approx(alone.metrics["test"][name], rel=1e-9)
    assert spread.metrics["test"]["mse"] != alone.metrics["naive"]["ewma"]["mse"]


def test_folds_have_their_own_rivals_and_a_search_takes_the_task(tmp_path):
    walked = sp500.walk_forward(name="folds", runs_dir=tmp_path, folds=2, test_days=100, **SMALL)
    rows = walked.folds or []
    assert [set(row["naive"]) for row in rows] == [{"last", "mean", "ewma", "har"}] * 2
    assert rows[0]["naive"]["mean"] != rows[1]["naive"]["mean"]
    assert walked.metrics["test"]["qlike"]["count"] == 2
    space = {"train.lr": [0.001, 0.01]}
    (tmp_path / "space.yaml").write_text(str(space))
    found = sp500.search(name="s", runs_dir=tmp_path, space=str(tmp_path / "space.yaml"), mode="packed", **SMALL)
    assert found.search is not None
    assert found.metrics["test"]["improvement"]["metric"] == "mse"


def test_streamed_windows_lead_to_the_rivals_of_those_in_memory(tmp_path):
    record = sp500.scale(name="scale", runs_dir=tmp_path, arms=("in_memory", "streaming"), multipliers=(1, 2), **SMALL)
    rows = record.scale or []
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert len({row["best_epoch"] for row in rows} - {0}) >= 1
