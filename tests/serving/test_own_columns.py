"""Models with columns of a user's own: what a request needs, and the forecast that training would have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import price_files
import pytest
from http_server import serving

import sp500

OWN = """
import numpy as np
import sp500


class Calm(sp500.PriceTask):
    unit = "volatility"

    def features(self, prices):
        move = np.log(prices.close).diff()
        return {"size": move.abs().rolling(20).mean(), "news": prices["news"].abs()}

    def target(self, prices, config):
        move = np.log(prices.close).diff()
        return move.pow(2).rolling(5).mean().pow(0.5).shift(-5)


class Ranked(sp500.PriceTask):
    def features(self, prices):
        move = np.log(prices.close).diff()
        return {"move": move, "ahead_of_others": move.rank(axis=1)}
"""
WINDOW = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    source = price_files.write(folder / "quant.csv")
    (folder / "own.py").write_text(OWN)
    data: dict[str, Any] = {"source": source, "window": WINDOW}
    shared: dict[str, Any] = {"runs_dir": folder / "runs", "model": {"kind": "linear"}, "train": {"epochs": 2}}
    sp500.train(name="named", data={**data, "features": ("log_return", "news")}, **shared)
    sp500.train(name="calm", task=f"{folder}/own.py:Calm", data={**data, "horizon": 5}, **shared)
    sp500.train(name="ranked", task=f"{folder}/own.py:Ranked", data=data, **shared)
    return folder / "runs"


def body_until(day: pd.Timestamp, ticker: str, days: int) -> dict[str, Any]:
    table = price_files.make_table()
    rows = table[(table["ticker"] == ticker) & (table["date"] <= f"{day:%Y-%m-%d}")].iloc[-days:]
    plain = {"ticker": ticker, "dates": rows["date"].tolist(), "close": rows["close"].tolist()}
    return {**plain, "columns": {"news": rows["news"].tolist()}}


@pytest.mark.parametrize(
    ("name", "history", "unit"), [("named", 49 + WINDOW, "log return"), ("calm", 66, "volatility")]
)
def test_request_with_own_columns_gets_the_forecast_of_the_test(runs: Path, name: str, history: int, unit: str) -> None:
    tested = pd.read_parquet(runs / name / "predictions.parquet").iloc[[3, -2]]
    with serving(runs, name) as (client, _, _):
        model = client.get("/v1/models").json()["champion"]
        assert (model["columns"], model["history"], model["refuses"]) == (["close", "news"], history, "")
        for row in tested.itertuples():
            answer = client.post("/v1/forecast", body_until(row.date, row.ticker, history)).json()
            assert answer["forecast"] == pytest.approx(row.forecast, rel=1e-4, abs=1e-9)
            assert (answer["as_of"], answer["unit"]) == (f"{row.date:%Y-%m-%d}", unit)
        short = body_until(tested["date"].iloc[0], "AAA", history - 1)
        assert client.post("/v1/forecast", short).json()["problems"][0]["rule"] == "too_short"
        example = client.get("/v1/prices/BBB").json()
        assert set(example["columns"]) == {"news"}
        assert client.post("/v1/forecast", example).status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"columns": {}}, "columns.news"),
        ({"columns": {"news": [1.0]}}, "columns.news"),
        ({"columns": {"close": [1.0]}}, "columns.close"),
        ({"columns": {"news": ["x"]}}, "columns.news[0]"),
    ],
    ids=["missing", "too short", "a field", "a text"],
)
def test_request_without_the_column_names_it(runs: Path, change: dict[str, Any], field: str) -> None:
    with serving(runs, "named") as (client, _, _):
        answer = client.post("/v1/forecast", {**body_until(pd.Timestamp("2017-06-01"), "AAA", 80), **change})
        assert answer.status_code == 422
        assert answer.json()["problems"][0]["field"] == field


def test_model_that_needs_other_tickers_is_refused_with_the_column(runs: Path) -> None:
    with serving(runs, "ranked") as (client, _, _):
        assert "ahead_of_others" in client.get("/v1/models").json()["champion"]["refuses"]
        answer = client.post("/v1/forecast", body_until(pd.Timestamp("2017-06-01"), "AAA", 80))
        assert answer.status_code == 422
        assert "column ahead_of_others of this model depends on other tickers" in answer.text
