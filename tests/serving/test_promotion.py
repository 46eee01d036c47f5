"""Which run answers for a model: promoted, refused, rolled back, in part or in the shadow, while requests come."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import your_own
from http_server import Client, body, serving

import sp500
from sp500.cli import main
from sp500.config import DataConfig
from sp500.data.sources import load
from sp500.errors import ConfigError, DiskError
from sp500.runs.store import Run
from sp500.serving import answers, models, registry
from sp500.serving.models import Choice, Served
from sp500.serving.predictor import Predictor
from sp500.serving.registry import Registry

LONG = 120.0


@pytest.fixture
def runs(served_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs, of one's own to change, in a folder that commands find; servers look often."""
    shutil.copytree(served_runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sp500.serving.app.POLL_SECONDS", 0.05)
    monkeypatch.setattr("sp500.serving.answers.FLUSH_SECONDS", 0.05)
    return tmp_path / "runs"


def said(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["models", *words]) == code
    captured = capfd.readouterr()
    return captured.err if code else captured.out


def until(true: Any) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def closes() -> dict[str, Any]:
    return body(load(DataConfig(tickers=("KO",))).close["KO"].iloc[-80:])


def version(client: Client) -> str:
    return str(client.post("/v1/forecast", closes()).json().get("version"))


def test_model_without_a_promoted_run_is_ready_and_says_so(runs, capfd):
    with serving(runs, "main") as (client, *_):
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/forecast", closes())
        assert (answer.status_code, answer.json()["error"]) == (503, "no model promoted for main")
        said(capfd, "promote", "returns")
        until(lambda: version(client) == "1")


def test_requests_go_on_while_models_change(runs, capfd):
    said(capfd, "promote", "returns")
    request, done = closes(), threading.Event()

    def load_it(_: int) -> list[tuple[int, str, str, float]]:
        """Requests one after the other, until it is enough: status, run, version, seconds."""
        found = []
        with_client = Client(int(client.url.rpartition(":")[2]))
        while not done.is_set():
            begun = time.perf_counter()
            answer = with_client.post("/v1/forecast", request)
            told = answer.json()
            found.append((answer.status_code, told["run"], told["version"], time.perf_counter() - begun))
        return found

    with serving(runs, "main") as (client, served, _), ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(load_it, number) for number in range(4)]
        for run, number in (("other", "2"), ("returns", "1"), ("other", "2"), ("returns", "1")):
            said(capfd, "promote", run)
            until(lambda number=number: served.choice.champion.version == number)
        assert "other requests" in said(capfd, "promote", "wider", code=2)
        assert "holds no run" in said(capfd, "promote", "nothing", code=2)
        shutil.copytree(runs / "other", runs / "torn")
        said(capfd, "promote", "torn")  # the same weights, as another version
        until(lambda: served.choice.champion.version == "3")
        said(capfd, "rollback")
        until(lambda: served.choice.champion.version == "1")
        weights = runs / "torn" / "checkpoints" / "best" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        assert "not hold the weights" in said(capfd, "promote", "torn", code=1)
        # As if it were torn after it was promoted.
        served._loaded.pop(3, None)
        Registry(runs).promote("main", "torn", *_hashes(runs, 3), canary=None, shadow=False)
        until(lambda: "not hold the weights" in served.choice.refused)
        assert client.get("/v1/models").json()["champion"]["version"] == "1"
        assert "sp500_model_refused 1.0" in client.get("/metrics").text
        said(capfd, "rollback")
        until(lambda: not served.choice.refused)
        done.set()
        found = [one for request in requests for one in request.result()]
    assert {status for status, *_ in found} == {200}
    assert {(run, number) for _, run, number, _ in found} <= {("returns", "1"), ("other", "2"), ("torn", "3")}


def _hashes(runs: Path, number: int) -> tuple[str, str]:
    made = Registry(runs).read("main").version(number)
    return made.weights_sha256, made.interface


def test_canary_answers_its_share_and_the_same_request_always_alike(served_runs):
    predictor = Predictor(served_runs / "returns")
    champion, canary = (Served(predictor, run, "1", run) for run in ("champion", "canary"))
    choice = Choice(champion, canary, 0.1)
    picked = [choice.pick(f"request-{number}") for number in range(10_000)]
    assert 910 <= sum(one is canary for one in picked) <= 1090
    assert picked == [choice.pick(f"request-{number}") for number in range(10_000)]


def test_canary_and_shadow_answer_through_http(runs, capfd):
    assert "no champion yet" in said(capfd, "promote", "other", "--canary", "0.5", code=2)
    said(capfd, "promote", "returns")
    said(capfd, "promote", "other", "--canary", "0.5")
    request = closes()
    with serving(runs, "main") as (client, served, log):
        told = [client.post("/v1/forecast", request, headers={"X-Request-Id": str(one)}).json() for one in range(40)]
        assert {one["version"] for one in told} == {"1", "2"}
        assert [one["version"] for one in told] == [served.choice.pick(str(one)).version for one in range(40)]
        said(capfd, "rollback")
        said(capfd, "promote", "other", "--shadow")
        until(lambda: served.choice.shadow is not None)
        assert client.post("/v1/forecast", request).json()["version"] == "1"
        until(lambda: "shadow" in answers.read(log.folder)["role"].to_pylist() if list(log.folder.glob("*")) else False)
    assert "shadow" in said(capfd, "list")


def test_shadow_that_fails_shows_in_no_answer(runs, capfd, caplog):
    said(capfd, "promote", "returns")
    said(capfd, "promote", "other", "--shadow")
    with serving(runs, "main") as (client, served, _):
        served.choice.shadow.predictor.model = None
        assert [client.post("/v1/forecast", closes()).status_code for _ in range(3)] == [200] * 3
        until(lambda: "shadow other: " in caplog.text)


def test_broken_candidate_keeps_no_champion_from_answering(runs, capfd):
    said(capfd, "promote", "returns")
    said(capfd, "promote", "other", "--canary", "0.5")
    shutil.rmtree(runs / "other")
    with serving(runs, "main") as (client, *_):
        assert version(client) == "1"
        assert "canary: " in client.get("/v1/models").json()["refused"]
        # A file that is away for a moment takes nothing from those who have read it.
        (runs / ".models" / "main.json").rename(runs / "away")
        until(lambda: "is gone" in client.get("/v1/models").json()["refused"])
        assert version(client) == "1"
        (runs / "away").rename(runs / ".models" / "main.json")
    shutil.rmtree(runs / "returns")
    with serving(runs, "main") as (client, *_):
        assert client.get("/readyz").status_code == 503


@pytest.mark.parametrize("name", ["returns", "direction"])
def test_score_of_the_answers_is_that_of_the_report(runs, capfd, name):
    said(capfd, "promote", name)
    record = Run(runs / name).record()
    assert record is not None
    with serving(runs, "main") as (client, served, _):
        predictor = served.choice.champion.predictor
        dataset = predictor.task.prepare(predictor.config)
        prices = load(predictor.config.data).close
        for ticker, day in dataset.test.index[["ticker", "date"]].itertuples(index=False):
            answer = client.post("/v1/forecast", body(prices[ticker].loc[:day].iloc[-60:]))
            assert answer.status_code == 200, answer.text
        last = prices["KO"].iloc[-60:]  # whose next session is not known yet
        assert client.post("/v1/forecast", body(last)).status_code == 200
    [row] = json.loads(said(capfd, "score", "--json"))["runs"]
    test = record.metrics["test"]
    assert (row["judged"], row["answers"]) == (test["samples"], test["samples"] + 1)
    metric = test["improvement"]["metric"]
    known = record.metrics["naive"]
    if metric == "mse":
        assert row["mse"] == pytest.approx(test["mse"], rel=1e-5)
        assert row["naive"] == pytest.approx({one: known[one]["mse"] for one in known}, rel=1e-9)
    else:
        assert row["error_rate"] == pytest.approx(1 - test["accuracy"], abs=1e-12)
        assert row["naive"] == pytest.approx({one: 1 - known[one]["accuracy"] for one in known}, abs=1e-12)
    assert row["improvement"]["over"] == test["improvement"]["over"]
    for end in ("value", "low", "high"):
        assert row["improvement"][end] == pytest.approx(test["improvement"][end], abs=1e-6)
    assert "answers judged" in said(capfd, "score")


def test_score_without_answers_says_so(runs, capfd):
    assert "has no champion" in said(capfd, "score", code=2)
    said(capfd, "promote", "returns")
    assert "no answers" in said(capfd, "score", code=2)


def test_damaged_file_of_a_model_is_named_and_changes_nothing(runs, capfd):
    said(capfd, "promote", "returns")
    path = runs / ".models" / "main.json"
    with serving(runs, "main") as (client, served, _):
        whole = path.read_text()
        path.write_text(whole.replace('"run": "returns"', '"run": "other"'))
        until(lambda: "not a model's file" in served.choice.refused)
        assert version(client) == "1"
        assert "not a model's file" in said(capfd, "list", code=2)
        path.write_text(whole)
        until(lambda: not served.choice.refused)


def test_promotions_at_once_are_all_kept(runs):
    registry = Registry(runs)
    with ThreadPoolExecutor(8) as pool:
        made = [
            pool.submit(registry.promote, "main", f"run-{one}", "0" * 64, "same", canary=None, shadow=False)
            for one in range(40)
        ]
        for one in made:
            one.result()
    model = registry.read("main")
    assert sorted(one.run for one in model.versions) == sorted(f"run-{one}" for one in range(40))
    assert [one.version for one in model.versions] == list(range(1, 41))
    assert len(model.champions) == 40


def test_of_all_that_answered_the_last_are_kept(runs, monkeypatch):
    monkeypatch.setattr(registry, "MOST_CHAMPIONS", 3)
    kept = Registry(runs)
    for one in range(9):
        kept.promote("main", f"run-{one % 2}", "0" * 64, "same", canary=None, shadow=False)
    assert kept.read("main").champions == (1, 2, 1)
    assert kept.rollback("main").champion == kept.read("main").version(2)


def test_name_that_is_none_is_refused(runs):
    with pytest.raises(ConfigError, match="expected small letters"):
        Registry(runs).read("../elsewhere")
    with pytest.raises(ConfigError, match=r"no run in .*, and no model"):
        models.open_model(runs, "nothing")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"run": "returns"', '"run": "../outside"'),
        ('"run": "returns"', '"run": "/tmp"'),
        ('"run": "returns"', '"run": ""'),
        ("1\n ]", "0\n ]"),
        ("1\n ]", "2\n ]"),
        ('"shadow": null', '"shadow": -1'),
    ],
)
def test_model_whose_file_names_no_run_or_no_version_is_refused(tmp_path, old, new):
    """Whoever can write the file can also seal it."""
    registry = Registry(tmp_path)
    registry.promote("main", "returns", "0" * 64, "same", canary=None, shadow=False)
    path = tmp_path / ".models" / "main.json"
    text = path.read_text().rpartition(',\n "sha256"')[0]
    assert old in text
    text = text.replace(old, new)
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(f'{text},\n "sha256": "{digest}"\n}}\n')
    with pytest.raises(ConfigError, match="not a model's file"):
        registry.read("main")


def test_rollback_without_an_earlier_champion_is_refused(runs, capfd):
    said(capfd, "promote", "returns")
    assert "no champion before" in said(capfd, "rollback", code=2)


def test_answers_wait_for_a_disk_that_takes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MOST_KEPT", 5)
    (tmp_path / "answers").write_text("no folder")
    log = answers.AnswerLog(tmp_path / "answers")
    for number in range(8):
        log.add(answer(number, f"T{number}"))
    with pytest.raises(DiskError):
        log.flush()
    (tmp_path / "answers").unlink()
    log.flush()
    assert answers.read(tmp_path / "answers")["forecast"].to_pylist() == [3, 4, 5, 6, 7]
    log.flush()
    assert len(list((tmp_path / "answers").iterdir())) == 1


def test_answers_can_be_read_while_they_are_written(tmp_path):
    log = answers.AnswerLog(tmp_path / "answers")
    for number in range(500):
        log.add(answer(number, f"T{number}"))

    def write() -> None:
        for number in range(500, 530):
            log.add(answer(number, f"T{number}"))
            log.flush()

    writer = threading.Thread(target=write)
    writer.start()
    read = [log.read()["forecast"].to_pylist() for _ in iter(writer.is_alive, False)]
    writer.join()
    assert [sorted(one) for one in read] == [list(range(len(one))) for one in read]
    assert min(map(len, read)) >= 500
    assert sorted(log.read()["forecast"].to_pylist()) == list(range(530))


def test_answer_for_an_unknown_ticker_keeps_no_other_from_being_judged(runs, capfd):
    said(capfd, "promote", "returns")
    with serving(runs, "main") as (client, *_):
        request = closes()
        early = {**request, **{name: request[name][:-5] for name in ("dates", "close")}}
        assert client.post("/v1/forecast", early).status_code == 200
        assert client.post("/v1/forecast", {**early, "ticker": "FOO"}).status_code == 200
        [row] = client.get("/v1/scores").json()["runs"]
    assert (row["judged"], row["answers"]) == (1, 2)
    [row] = json.loads(said(capfd, "score", "--json"))["runs"]
    assert (row["judged"], row["answers"]) == (1, 2)


def test_answer_to_made_up_prices_neither_counts_nor_replaces_another(runs, capfd, monkeypatch):
    monkeypatch.setattr(answers, "PARTS", 2)
    said(capfd, "promote", "returns")
    close = load(DataConfig(tickers=("KO",))).close["KO"].iloc[-90:-5]
    returns = np.log(close).diff().fillna(0.0)
    made_up = [
        (close * np.exp((0.05 * (np.arange(len(close)) == back)).cumsum())) for back in (len(close) - 1, len(close) - 9)
    ]
    alike = [close, (3.7 * close).round(2), close.iloc[-70:]]  # also adjusted and rounded, and fewer days
    with serving(runs, "main") as (client, _, log):
        for prices in [*alike, *made_up, np.exp(-returns.cumsum())]:
            assert client.post("/v1/forecast", body(prices.rename("KO"))).status_code == 200
            log.flush()
    [row] = json.loads(said(capfd, "score", "--json"))["runs"]
    assert (row["judged"], row["other_prices"]) == (1, 3)
    log = answers.AnswerLog(log.folder)
    kept = log.read().to_pandas()
    forecast = kept["forecast"][kept["trace_0"].sub(kept["trace_0"].iloc[0]).abs() < 1e-3].iloc[-1]
    known = load(DataConfig(tickers=("KO",))).close["KO"]
    target = np.log(known.loc[kept["session"].iloc[0]] / close.iloc[-1])
    assert row["mse"] == pytest.approx((forecast - target) ** 2, rel=1e-6)
    assert "for other prices" in said(capfd, "score")


def answer(number: int, ticker: str = "KO") -> dict[str, object]:
    same = {"run": "a", "version": "1", "role": "champion", "unit": "log return", "session": "2022-01-05"}
    return {**same, "request_id": f"r{number}", "ticker": ticker, "as_of": "2022-01-04", "forecast": float(number)}


def test_files_of_answers_are_joined_and_the_last_of_those_that_are_alike_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "PARTS", 5)
    folder = tmp_path / "answers"
    logs = [answers.AnswerLog(folder) for _ in range(2)]  # as of two processes
    for number in range(46):
        logs[number % 2].add(answer(number, f"T{number // 2 % 10}"))
        logs[number % 2].flush()
    files = list(folder.iterdir())
    assert len(files) < 5
    assert sum(len(pd.read_parquet(file)) for file in files) < 26
    last = {f"T{number // 2 % 10}": number for number in range(46)}
    found = answers.read(folder).to_pandas()
    assert dict(zip(found["ticker"], found["forecast"], strict=True)) == last
    shutil.copy(files[0], folder / "killed-while-joining.parquet")
    assert len(answers.read(folder)) == len(logs[0].read()) == len(last)
    assert set(pd.read_parquet(files[0])["request_id"]) <= {f"r{number}" for number in range(46)}


def test_oldest_answers_are_dropped_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "PARTS", 2)
    monkeypatch.setattr(answers, "MOST_ANSWERS", 7)
    log = answers.AnswerLog(tmp_path / "answers")
    for number in range(20):
        log.add(answer(number, f"T{number}"))
        log.flush()
    assert answers.read(tmp_path / "answers")["forecast"].to_pylist() == list(range(13, 20))


def test_damaged_file_of_answers_is_not_joined_away(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "PARTS", 3)
    log = answers.AnswerLog(tmp_path / "answers")
    for number in range(3):
        if number == 2:
            next((tmp_path / "answers").iterdir()).write_bytes(b"torn")
        log.add(answer(number, f"T{number}"))
        log.flush()
    assert len(list((tmp_path / "answers").iterdir())) == 3
    assert len(answers.read(tmp_path / "answers")) == 2


def test_runs_of_ones_own_task_take_each_others_place_also_in_a_moved_folder(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)
    for name, width in (("first", 8), ("second", 12)):
        model = {"kind": "biopsies.py:Residual", "options": {"width": width}}
        sp500.train(name=name, task="biopsies.py:Biopsies", model=model, train={"epochs": 1})
    said(capfd, "promote", "first")
    shutil.copytree("runs", "moved")
    assert "second  promoted" in said(capfd, "promote", "second", "--runs-dir", "moved")
    with serving(tmp_path / "moved", "main") as (client, served, _):
        x = served.choice.champion.predictor.recipe.test_input.numbers.tolist()
        answer = client.post("/v1/windows", {"x": x}).json()
        assert (answer["run"], answer["version"]) == ("second", "2")
        described = client.get("/v1/models").json()["champion"]
        assert (described["task"], described["paths"]) == ("Biopsies", ["/v1/windows"])
        assert described["state"] == served.choice.champion.predictor.recipe.state


def test_run_has_one_role(runs, capfd):
    said(capfd, "promote", "returns")
    said(capfd, "promote", "other", "--canary", "0.5")
    found = Registry(runs).read("main")
    assert (found.canary is not None, found.shadow) == (True, None)
    said(capfd, "promote", "other", "--shadow")
    found = Registry(runs).read("main")
    assert (found.canary, found.shadow) == (None, 2)
    said(capfd, "promote", "other", "--canary", "0.5")
    found = Registry(runs).read("main")
    assert (found.canary is not None, found.shadow) == (True, None)
