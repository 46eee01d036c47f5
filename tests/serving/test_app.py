"""A trained run over HTTP: the numbers of training, and a clear no to everything else."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from http_server import Client, body, serving

import sp500
from sp500.config import DataConfig
from sp500.data.features import WARM_UP
from sp500.data.prices import Prices
from sp500.data.sources import load

WINDOW = 10
LEAST = WARM_UP + WINDOW


@pytest.fixture(scope="module")
def runs(served_runs: Path) -> Path:
    return served_runs


@pytest.fixture(scope="module")
def prices() -> Prices:
    return load(DataConfig(tickers=("AAPL", "KO"), start="2019-01-01"))


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[Client]:
    with serving(runs, "returns") as (client, *_):
        yield client


@pytest.mark.parametrize("name", ["returns", "direction", "ridge", "trees"])
def test_every_test_date_has_the_features_and_the_forecast_of_training(runs, prices, name):
    with serving(runs, name) as (client, served, _):
        predictor = served.choice.champion.predictor
        dataset = predictor.task.prepare(predictor.config)
        windows, index = dataset.test, dataset.test.index
        kept = pd.read_parquet(runs / name / "predictions.parquet").set_index(["ticker", "date"])["forecast"]
        deviation = 1.0 if name == "direction" else dataset.target_scale
        for number in range(len(windows)):
            ticker, day = index["ticker"].iloc[number], index["date"].iloc[number]
            close = prices.close[ticker].loc[:day].iloc[-LEAST:]
            answer = client.post("/v1/forecast", body(close)).json()
            assert answer["forecast"] == pytest.approx(kept[ticker, day], abs=1e-6 * deviation)
            assert (answer["ticker"], answer["as_of"]) == (ticker, f"{day:%Y-%m-%d}")
            x = predictor.task.encode({"close": close}, predictor.recipe.dataset)
            first = windows.starts[number]
            assert x.dtype == windows.rows.dtype
            assert (x[0] == windows.rows[first : first + WINDOW]).all()


def test_forecast_is_for_the_next_session_and_comes_with_the_naive_ones(client, prices):
    close = prices.close["KO"].loc[:"2022-09-02"]  # a Friday before Labor Day
    answer = client.post("/v1/forecast", body(close)).json()
    assert (answer["as_of"], answer["session"], answer["unit"]) == ("2022-09-02", "2022-09-06", "log return")
    assert answer["naive"]["zero"] == 0
    assert answer["naive"]["previous"] == pytest.approx(float(np.log(close.iloc[-1] / close.iloc[-2])), rel=1e-12)
    assert (answer["model"], answer["run"]) == ("returns", "returns")


def test_earlier_prices_change_no_bit(client, prices):
    close = prices.close["KO"].loc[:"2022-06-30"]
    long, short = (client.post("/v1/forecast", body(part)).json() for part in (close, close.iloc[-LEAST:]))
    assert long["forecast"] == short["forecast"]


def test_changed_later_prices_change_no_answer(prices, tmp_path):
    source, runs, asked = tmp_path / "prices.csv", tmp_path / "runs", prices.close["KO"].loc[:"2022-06-30"]
    close = prices.close[["KO"]].rename_axis("date")
    close.to_csv(source)
    data = {"source": str(source), "tickers": ["KO"], "window": WINDOW}
    sp500.train(name="m1", data=data, train={"epochs": 1}, runs_dir=runs)
    found, last = [], []
    for factor in (1.0, 1.05):
        pd.concat([close.loc[: asked.index[-1]], factor * close.loc[asked.index[-1] :].iloc[1:]]).to_csv(source)
        with serving(runs, "m1") as (client, *_):
            last.append(client.get("/v1/prices/KO").json()["close"][-1])
            found.append(client.post("/v1/forecast", body(asked)).json())
    assert last[1] == pytest.approx(1.05 * last[0])  # the server has the changed prices
    assert found[0] == found[1]


def test_missing_day_is_repaired_as_in_training_and_told(client, prices):
    close = prices.close["KO"].iloc[-200:]
    answer = client.post("/v1/forecast", body(close.drop(close.index[-20])))
    assert answer.status_code == 200
    assert "missing: KO" in answer.json()["repairs"][0]


JSON = {"Content-Type": "application/json"}
DAYS = ["2022-01-03", "2022-01-04", "2022-01-05"]
BAD: dict[str, tuple[str | bytes, str]] = {
    "broken JSON": ("{", "body"),
    "no JSON": ("hello", "body"),
    "not UTF-8": (b'{"dates": "\xff"}', "body"),
    "a list": ("[]", "body"),
    "empty": ("{}", "dates"),
    "deep": ('{"dates": ' + "[" * 5000 + "]" * 5000 + "}", "body"),
    "NaN": (json.dumps({"dates": DAYS, "close": [1, 2, float("nan")]}), "close[2]"),
    "Infinity": (json.dumps({"dates": DAYS, "close": [1, 2, float("inf")]}), "close[2]"),
    "1e999": ('{"dates": ["2022-01-03", "2022-01-04"], "close": [1, 1e999]}', "close[1]"),
    "null": (json.dumps({"dates": DAYS, "close": [1, 2, None]}), "close[2]"),
    "text": (json.dumps({"dates": DAYS, "close": [1, 2, "three"]}), "close[2]"),
    "a number for dates": (json.dumps({"dates": 5, "close": [1, 2]}), "dates"),
    "no date": (json.dumps({"dates": ["2022-01-03", "soon"], "close": [1, 2]}), "dates[1]"),
    "fewer prices": (json.dumps({"dates": DAYS, "close": [1, 2]}), "close"),
    "other field shorter": (json.dumps({"dates": DAYS, "close": [1, 2, 3], "open": [1]}), "open"),
    "unsorted": (json.dumps({"dates": DAYS[::-1], "close": [1, 2, 3]}), "dates[1]"),
    "duplicate": (json.dumps({"dates": [DAYS[0], *DAYS[:2]], "close": [1, 2, 3]}), "dates[1]"),
    "zero": (json.dumps({"dates": DAYS, "close": [1, 0, 2]}), "close"),
    "negative": (json.dumps({"dates": DAYS, "close": [1, -1, 2]}), "close"),
    "split": (json.dumps({"dates": DAYS, "close": [100, 50, 50]}), "close"),
    "future": (json.dumps({"dates": ["2098-01-02", "2098-01-03"], "close": [1, 1]}), "dates[1]"),
    "year 1": (json.dumps({"dates": ["0001-01-02", "0001-01-03"], "close": [1, 1]}), "close"),
    "no sessions": (json.dumps({"dates": ["2022-01-01", "2022-01-02"], "close": [1, 1]}), "dates"),
    "too few": (json.dumps({"dates": DAYS, "close": [1, 1, 1]}), "close"),
    "unknown field": (json.dumps({"dates": DAYS, "close": [1, 1, 1], "closing": 2}), "closing"),
    "many unknown fields": (json.dumps(dict.fromkeys(map(str, range(80_000)), 1)), "body"),
    "many faults": (json.dumps({"dates": DAYS, "close": ["x"] * 5000}), "close[0]"),
    "too many": (json.dumps({"dates": DAYS, "close": [1.0] * 6000}), "close"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_body_is_refused_by_field(client, name):
    data, field = BAD[name]
    answer = client.session.post(client.url + "/v1/forecast", data=data, headers=JSON, timeout=60)
    assert answer.status_code == 422, answer.text
    assert field in [problem["field"] for problem in answer.json()["problems"]], answer.text
    assert name not in {"many unknown fields", "many faults"} or len(answer.json()["problems"]) == 1


def test_fault_in_prices_has_its_rule_and_date(client):
    answer = client.post("/v1/forecast", {"dates": DAYS, "close": [100, 50, 50]}).json()
    assert (answer["problems"][0]["rule"], answer["problems"][0]["date"]) == ("split", "2022-01-04")
    told = client.post("/v1/forecast", {"dates": DAYS, "close": [100, 50, 50], "real_moves": [DAYS[1]]}).json()
    assert told["problems"][0]["rule"] == "too_short"


def test_body_beyond_a_mebibyte_is_refused_also_without_its_length(client):
    data = b" " * (2**20 + 1)
    whole, parts, small = (
        client.session.post(client.url + "/v1/forecast", data=sent, headers=JSON, timeout=60)
        for sent in (data, iter([data[: 2**19], data[2**19 :]]), iter([b"{", b"}"]))
    )
    assert (whole.status_code, parts.status_code, small.status_code) == (413, 413, 422)


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({}, "missing"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "x-www-form-urlencoded"),  # what curl -d sends
        ({"Content-Type": "text/plain; charset=utf-8"}, "text/plain"),
        ({**JSON, "Content-Encoding": "gzip"}, "gzip"),
    ],
)
def test_body_that_is_not_sent_as_plain_json_is_told_so(client, prices, headers, word):
    data = json.dumps(body(prices.close["KO"])).encode()
    data = gzip.compress(data) if "Content-Encoding" in headers else data
    answer = client.session.post(client.url + "/v1/forecast", data=data, headers=headers, timeout=60)
    assert answer.status_code == 415
    assert word in answer.json()["error"]
    whole = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "identity"}
    plain = json.dumps(body(prices.close["KO"])).encode()
    assert client.session.post(client.url + "/v1/forecast", data=plain, headers=whole, timeout=60).status_code == 200
    for path, status in (("/v1/nothing", 404), ("/healthz", 405)):
        assert client.session.post(client.url + path, data=b"x", timeout=60).status_code == status


def test_head_has_the_status_of_get_and_no_body(client):
    for path, status in {**dict.fromkeys(("/", "/healthz", "/readyz", "/docs", "/metrics"), 200), "/no": 404}.items():
        head, whole = client.session.head(client.url + path, timeout=60), client.get(path)
        assert (head.status_code, head.content, whole.status_code) == (status, b"", status)
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert client.session.head(client.url + "/v1/forecast", timeout=60).status_code == 405


def test_windows_get_the_models_outputs(runs):
    for name in ("synthetic", "images"):
        with serving(runs, name) as (client, served, _):
            predictor = served.choice.champion.predictor
            x = np.repeat(predictor.recipe.test_input.numbers, 3, axis=0)
            answer = client.post("/v1/windows", {"x": x.tolist()}).json()
            assert np.allclose(answer["outputs"], predictor.outputs(x), rtol=1e-6, atol=1e-7)
            assert client.post("/v1/forecast", {"dates": DAYS, "close": [1, 1, 1]}).status_code == 422
            odd = [x.tolist() for _ in range(4)]
            for one, leaf in zip(odd, (True, "1.5", None, [1.5]), strict=True):
                row = one[1]
                while isinstance(row[0], list):
                    row = row[0]
                row[0] = leaf
            for wrong in (x[:, :-1].tolist(), [[1, 2]], [["a"]], 5, [], [[[1e39]]], [None], *odd):
                refused = client.post("/v1/windows", {"x": wrong})
                assert refused.status_code == 422
                assert refused.json()["problems"][0]["field"].startswith("x")
    fraction = np.full(x.shape, 0.5).tolist()  # images are whole numbers
    with serving(runs, "images") as (client, *_):
        assert "do not fit uint8" in client.post("/v1/windows", {"x": fraction}).json()["error"]


def test_long_text_among_many_takes_no_memory(runs):
    with serving(runs, "synthetic") as (client, *_):
        client.get("/healthz")
        tracemalloc.start()
        try:
            answer = client.post("/v1/windows", {"x": [["a" * 10_000, *[""] * 50_000]]})
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, "x[0]")
    assert most < 2**26  # NumPy alone would make room for 2 GB


def test_key_is_needed_for_answers_and_not_for_health(runs):
    with serving(runs, "returns", key="secret") as (client, *_):
        for path in ("/v1/models", "/metrics"):
            assert [
                client.get(path, headers=headers).status_code
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret"})
            ] == [401, 401, 200]
        assert client.post("/v1/forecast", {}).status_code == 401
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/docs")] == [200] * 3
        schema = client.get("/openapi.json").json()
        assert schema["security"] == [{"key": []}]
        assert "example" not in schema["components"]["schemas"]["Prices"]


def test_pages_scripts_come_from_the_server_itself(client):
    page = client.get("/docs").text
    assert "http://" not in page
    assert "https://" not in page
    assert client.get("/static-offline-docs/swagger-ui-bundle.js").status_code == 200
    schema = client.get("/openapi.json").json()
    assert "/v1/forecast" in schema["paths"]
    assert "security" not in schema


def test_no_answer_is_shown_in_a_frame_or_as_another_type(client):
    for path in ("/", "/page.js", "/docs", "/healthz", "/nothing/here"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in client.get("/").headers["content-security-policy"]


def test_request_keeps_its_id_and_is_counted(client):
    assert client.get("/healthz", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert len(client.get("/nothing/here").headers["x-request-id"]) == 32
    counts = client.get("/metrics").text
    assert 'sp500_requests_total{path="/healthz",status="200"}' in counts
    assert "/nothing/here" not in counts


def test_readiness_asks_the_model(runs, monkeypatch):
    with serving(runs, "returns") as (client, served, _):
        assert client.get("/readyz").json()["run"] == "returns"
        *_, bias = served.choice.champion.predictor.model.parameters()
        bias.data += 1.0
        end = time.monotonic() + 60
        while client.get("/readyz").status_code != 503:  # the model is asked once a second
            assert time.monotonic() < end
            time.sleep(0.1)
        assert str(runs) not in client.get("/readyz").text  # it needs no key


def test_requests_beyond_the_queue_are_told_to_come_again(runs, monkeypatch):
    monkeypatch.setattr("sp500.serving.guard.MOST_WAITING", 2)
    with serving(runs, "synthetic") as (client, served, _), ThreadPoolExecutor(4) as pool:
        x = served.choice.champion.predictor.recipe.test_input.numbers.tolist()
        held = threading.Event()
        model = served.choice.champion.predictor.model
        model.register_forward_pre_hook(lambda *_: held.wait(60) and None)

        def ask(_: int) -> tuple[int, str | None]:
            answer = Client(int(client.url.rpartition(":")[2])).post("/v1/windows", {"x": x})
            return answer.status_code, answer.headers.get("retry-after")

        # One is computed and two wait; a fourth is told so, whichever comes last.
        answers = [pool.submit(ask, number) for number in range(4)]
        first = next(as_completed(answers))
        assert first.result() == (429, "1")
        assert client.get("/healthz").status_code == 200
        with socket.create_connection(("127.0.0.1", int(client.url.rpartition(":")[2])), timeout=60) as unread:
            unread.sendall(b"POST /v1/windows HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            assert unread.recv(100).startswith(b"HTTP/1.1 429 ")  # before its body is there
        held.set()
        assert sorted(one.result()[0] for one in answers) == [200, 200, 200, 429]


def test_last_session_without_a_price_is_left_out(client, prices):
    close = prices.close["KO"].loc[:"2022-01-14"]
    # The holiday of 17 January takes the place of the 14th, which has no price then.
    told = body(close)
    told["dates"][-1] = "2022-01-17"
    answer = client.post("/v1/forecast", told)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["as_of"], answer.json()["session"]) == ("2022-01-13", "2022-01-14")
    assert answer.json()["forecast"] == client.post("/v1/forecast", body(close.iloc[:-1])).json()["forecast"]


def test_odd_numbers_of_windows_are_refused(runs):
    with serving(runs, "synthetic") as (client, served, _):
        x = served.choice.champion.predictor.recipe.test_input.numbers.tolist()
        data = json.dumps({"x": x}).replace(str(x[0][0][0]), "1" * 400, 1)
        sent = client.session.post(client.url + "/v1/windows", data=data, headers=JSON, timeout=60)
        assert (sent.status_code, sent.json()["problems"][0]["field"]) == (422, "x")
        many = np.zeros((1025, *np.shape(x)[1:]), int).tolist()
        assert client.post("/v1/windows", {"x": many}).status_code == 422
