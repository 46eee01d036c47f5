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


class Expanding(sp500.PriceTask):
    history = 1_000_000

    def features(self, prices):
        move = np.log(prices.close).diff()
        return {"score": move / move.expanding(20).std()}


class ByName(sp500.PriceTask):
    def features(self, prices):
        sizes = {"AAA": 1.0, "BBB": 2.0}
        return {"move": np.log(prices.close).diff() * [sizes[name] for name in prices.tickers]}
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
    sp500.train(name="byname", task=f"{folder}/own.py:ByName", data=data, **shared)
    sp500.train(name="expanding", task=f"{folder}/own.py:Expanding", data=data, **shared)
    sp500.train(name="ranked", task=f"{folder}/own.py:Ranked", data=data, **shared)
    return folder / "runs"


def body_until(day: pd.Timestamp, ticker: str, days: int) -> dict[str, Any]:
    table = price_files.make_table()
    rows = table[(table["ticker"] == ticker) & (table["date"] <= f"{day:%Y-%m-%d}")].iloc[-days:]
    plain = {"ticker": ticker, "dates": rows["date"].tolist(), "close": rows["close"].tolist()}
    return {**plain, "columns": {"news": rows["news"].tolist()}}


@pytest.mark.parametrize(
    ("name", "history", "unit"),
    [("named", 49 + WINDOW, "log return"), ("calm", 66, "volatility"), ("byname", 66, "log return")],
)
def test_request_with_own_columns_gets_the_forecast_of_the_test(runs, name, history, unit):
    tested = pd.read_parquet(runs / name / "predictions.parquet").iloc[[3, -2]]
    with serving(runs, name) as (client, _, _):
        model = client.get("/v1/models").json()["champion"]
        columns = ["close"] if name == "byname" else ["close", "news"]
        assert (model["columns"], model["history"], model["refuses"]) == (columns, history, "")
        for row in tested.itertuples():
            body = body_until(row.date, row.ticker, history)
            answer = client.post("/v1/forecast", body if name != "byname" else {**body, "columns": {}}).json()
            assert answer["forecast"] == pytest.approx(row.forecast, rel=1e-4, abs=1e-9)
            assert (answer["as_of"], answer["unit"]) == (f"{row.date:%Y-%m-%d}", unit)
        short = body_until(tested["date"].iloc[0], "AAA", history - 1)
        assert client.post("/v1/forecast", short).json()["problems"][0]["rule"] == "too_short"
        example = client.get("/v1/prices/BBB").json()
        assert set(example.get("columns", ["news"])) == {"news"}
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
def test_request_without_the_column_names_it(runs, change, field):
    with serving(runs, "named") as (client, _, _):
        answer = client.post("/v1/forecast", {**body_until(pd.Timestamp("2017-06-01"), "AAA", 80), **change})
        assert answer.status_code == 422
        assert answer.json()["problems"][0]["field"] == field


@pytest.mark.parametrize("name", ["named", "calm", "byname", "ranked", "expanding"])
def test_tickers_alone_are_forecast_by_the_prices_that_the_server_has(runs, name):
    with serving(runs, name) as (client, _, _):
        assert "/v1/forecast" in client.get("/v1/models").json()["champion"]["paths"]
        both = client.post("/v1/forecast", {"tickers": ["BBB", "AAA"]}).json()
        assert [part["ticker"] for part in both["forecasts"]] == ["BBB", "AAA"]
        alone = client.post("/v1/forecast", {"ticker": "AAA"}).json()
        assert alone["forecast"] == pytest.approx(both["forecasts"][1]["forecast"], rel=1e-6)
        if name not in {"ranked", "expanding"}:
            sent = client.post("/v1/forecast", client.get("/v1/prices/AAA").json()).json()
            assert sent["forecast"] == pytest.approx(alone["forecast"], rel=1e-5)
            assert (sent["as_of"], sent["naive"]) == (alone["as_of"], alone["naive"])


@pytest.mark.parametrize(("name", "days"), [("ranked", 66), ("expanding", 10_000)])
def test_columns_that_need_the_servers_prices_are_those_of_training(runs, name, days):
    predictor = sp500.Predictor(runs / name)
    dataset, prices = predictor.task.prepare(predictor.config), predictor.task.read(predictor.config).prices
    index = dataset.test.index
    for place in (0, len(index) // 3):
        row = index.iloc[place]
        known = prices.select(slice(0, prices.close.index.get_loc(row["date"]) + 1))
        x = predictor.task.encode_tickers(known.select(slice(-days, None)), [row["ticker"]], predictor.recipe.dataset)
        first = dataset.test.starts[place]
        assert x[0] == pytest.approx(dataset.test.rows[first : first + WINDOW], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tickers": ["AAA", "ZZZ"]}, "tickers"),
        ({"tickers": ["AAA"], "close": [1.0]}, "close"),
        ({"ticker": "AAA", "close": [1.0, 2.0]}, "dates"),
        ({}, "dates"),
    ],
)
def test_request_for_tickers_with_a_fault_names_the_field(runs, body, field):
    with serving(runs, "named") as (client, _, _):
        answer = client.post("/v1/forecast", body)
        assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, field)


def test_model_that_needs_other_tickers_is_refused_with_the_column(runs):
    with serving(runs, "ranked") as (client, _, _):
        assert "ahead_of_others" in client.get("/v1/models").json()["champion"]["refuses"]
        answer = client.post("/v1/forecast", body_until(pd.Timestamp("2017-06-01"), "AAA", 80))
        assert answer.status_code == 422
        assert "column ahead_of_others" in answer.text
