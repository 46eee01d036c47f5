"""Volatility: target, floor, columns and rivals against own code, GARCH against a simulated truth, and the verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import sp500
from sp500 import metrics
from sp500.config import RunConfig
from sp500.data import leaks, sessions
from sp500.data.prices import Prices
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, DataError
from sp500.formatting import fixed
from sp500.report.models import scores
from sp500.report.models.results import group_runs
from sp500.tasks import garch
from sp500.tasks.volatility import Volatility

HORIZON = 5
RIVALS = {"last", "mean", "ewma", "har"}


def make(**settings: Any) -> Volatility:
    data = {"horizon": HORIZON, "window": 4, **settings.pop("data", {})}
    return Volatility(RunConfig.model_validate({"task": "volatility", "data": data, **settings}))


def simulate(days: int, tickers: int = 1, *, step: float = 0.001, price: float = 100.0) -> Prices:
    generator = np.random.default_rng(3)
    dates = sessions.between(pd.Timestamp("2010-01-04"), pd.Timestamp("2022-12-30"))[:days]
    moves = 0.01 * generator.standard_t(5, (days, tickers)) * np.exp(0.3 * np.sin(np.arange(days) / 40))[:, None]
    close = np.round(price * np.exp(np.cumsum(moves, axis=0)) / step) * step
    return Prices({"close": pd.DataFrame(close, dates, [f"T{number}" for number in range(tickers)])}, "made up")


def write_ranges(path: Path, days: int = 900) -> str:
    close = simulate(days).close.iloc[:, 0]
    generator, opened = np.random.default_rng(5), close.shift().fillna(100.0)
    ends = np.column_stack([opened, close])
    high, low = ends.max(axis=1) * np.exp(generator.random(days) / 99), ends.min(axis=1) * 0.995
    columns = {"open": opened, "high": high, "low": low, "close": close, "volume": 1000.0}
    pd.DataFrame(columns).rename_axis("date").reset_index().to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def index(bundled: Prices) -> Prices:
    return bundled.select(slice(-2500, None))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    task = make(data={"start": "2012-01-03"})
    return task.prepare(task.config)


def test_columns_and_target_are_relative_to_ewma_volatility_as_own_loops_have_it(index):
    close = index.close.iloc[:, 0].to_numpy()
    moves = np.diff(np.log(close), prepend=np.nan)
    day = 1000
    weights = [0.94**age for age in range(252)]
    ewma = math.sqrt(sum(w * moves[day - age] ** 2 for age, w in enumerate(weights)) / sum(weights))
    ahead = math.sqrt(sum(moves[day + ahead] ** 2 for ahead in range(1, HORIZON + 1)) / HORIZON)
    task = make()
    assert task.target(index, task.config).iloc[day, 0] == pytest.approx(math.log(ahead / ewma), abs=1e-9)
    columns = {name: table.iloc[day, 0] for name, table in task.features(index).items()}
    mean = {days: math.sqrt(np.mean(moves[day - days + 1 : day + 1] ** 2)) for days in (5, 22, 252)}
    assert columns == {
        "shock": pytest.approx(moves[day] / ewma, abs=1e-9),
        "size": pytest.approx(abs(moves[day]) / ewma, abs=1e-9),
        **{
            name: pytest.approx(math.log(mean[days] / ewma), abs=1e-9)
            for name, days in {"week": 5, "month": 22, "year": 252}.items()
        },
        **{
            f"momentum_{days}": pytest.approx(math.log(close[day] / close[day - days]) / ewma / math.sqrt(days))
            for days in (5, 22)
        },
    }


@pytest.mark.parametrize("measure", ["parkinson", "garman_klass"])
def test_variance_of_ranges_is_that_of_the_papers(tmp_path, measure):
    source = write_ranges(tmp_path / "ranges.csv")
    task = make(data={"source": source}, volatility={"measure": measure})
    table, known = pd.read_csv(source), task.read(task.config).table.series[0]
    high_low, close_open = np.log(table["high"] / table["low"]), np.log(table["close"] / table["open"])
    days = {
        "parkinson": high_low**2 / (4 * math.log(2)),
        "garman_klass": 0.5 * high_low**2 - (2 * math.log(2) - 1) * close_open**2,
    }[measure]
    expected = 0.5 * np.log(days.rolling(22).mean())[-len(known.x) :]
    np.testing.assert_allclose(known.known["month"], expected, atol=1e-9)


def test_nothing_looks_ahead_and_a_request_needs_no_more_than_the_history():
    task, prices = make(), simulate(1200, tickers=2)
    hooks, rows = task.hooks(task.config), [300, 700, 1100]
    assert leaks.probe_target(prices, hooks, rows, HORIZON) is None
    tried = leaks.probe_features(prices, replace(hooks, history=hooks.needs["history"]), rows, window=4)
    assert tried == hooks.needs


def test_naive_forecasts_of_garch_do_not_change_with_later_prices():
    task, prices = make(volatility={"garch": True}), simulate(1300)
    before = task.hooks(task.config).known(prices)
    changed = prices.change(lambda name, table: table * np.where(np.arange(1300) > 1200, 7, 1)[:, None])
    for name, table in task.hooks(task.config).known(changed).items():
        pd.testing.assert_frame_equal(table[:1201], before[name][:1201], check_exact=True)
    assert not before["gjr"].equals(before["ewma"])


def test_naive_forecasts_are_fitted_on_the_training_windows(dataset):
    train, test = dataset.train.index, dataset.test.index
    task = make()
    frame = task.predictions(np.zeros((len(test), 1)), dataset.test, dataset)
    y, own = train["target"] + train["ewma"], {"mean": np.full(len(test), (train["target"] + train["ewma"]).mean())}
    for name, columns in {"ewma": ["ewma"], "har": ["day", "week", "month"]}.items():
        own[name] = LinearRegression().fit(train[columns], y).predict(test[columns])
    own["last"] = test["week"]
    for name in RIVALS:
        np.testing.assert_allclose(frame[f"naive_{name}"], own[name], atol=1e-9)
    np.testing.assert_allclose(frame["target"], test["target"] + test["ewma"])
    np.testing.assert_allclose(frame["forecast"], test["ewma"])


def test_untrained_model_is_ewma_times_a_constant(dataset):
    targets = dataset.train.index["target"]
    assert dataset.naive_output * dataset.target_scale == pytest.approx(targets.mean(), abs=1e-9)


def test_judge_compares_with_every_rival_by_mse_and_unbiased_qlike(dataset):
    task, generator = make(), np.random.default_rng(0)
    outputs = {
        name: generator.normal(dataset.naive_output, 0.1, (len(part), 1))
        for name, part in (("valid", dataset.valid), ("test", dataset.test))
    }
    scores = task.judge(outputs, dataset)
    valid, test = (task.predictions(outputs[name], getattr(dataset, name), dataset) for name in outputs)
    losses = {}
    for name in ("forecast", *(f"naive_{rival}" for rival in RIVALS)):
        bias = np.mean([math.exp(2 * (y - f)) for y, f in zip(valid["target"], valid[name], strict=True)])
        ratios = [math.exp(2 * (y - f)) / bias for y, f in zip(test["target"], test[name], strict=True)]
        losses[name] = np.array([ratio - math.log(ratio) - 1 for ratio in ratios])
    assert scores["test"]["qlike"] == pytest.approx(losses["forecast"].mean(), abs=1e-9)
    assert set(scores["naive"]) == set(scores["test"]["against"]) == RIVALS
    for rival in RIVALS:
        assert scores["naive"][rival]["qlike"] == pytest.approx(losses[f"naive_{rival}"].mean(), abs=1e-9)
        gain = scores["test"]["against"][rival]["qlike"]
        expected = metrics.improvement(
            losses["forecast"], losses[f"naive_{rival}"], test["date"].to_numpy(), horizon=HORIZON
        )
        assert gain["low"] == pytest.approx(expected["low"])
    best = min(RIVALS, key=lambda name: scores["naive"][name]["mse"])
    assert scores["test"]["improvement"] == {"over": best, "metric": "mse", **scores["test"]["against"][best]["mse"]}
    without = replace(dataset, valid=None)
    assert "qlike" not in task.judge({"test": outputs["test"]}, without)["test"]


@pytest.mark.parametrize("asymmetric", [False, True], ids=["garch", "gjr"])
def test_garch_forecasts_are_within_5_percent_of_the_truth(asymmetric):
    negative = 0.08 if asymmetric else 0.0
    truth = garch.Fitted(mean=0.03, constant=0.02, square=0.05, negative=negative, kept=0.93 - negative / 2)
    generator = np.random.default_rng(11)
    shocks = generator.standard_t(7, 8000) * math.sqrt(5 / 7)
    returns, variances = np.empty(8000), np.empty(8000)
    variance = 1.0
    for day, shock in enumerate(shocks):
        variances[day], error = variance, math.sqrt(variance) * shock
        returns[day] = truth.mean + error
        variance = truth.constant + (truth.square + negative * (error < 0)) * error**2 + truth.kept * variance
    stays = truth.square + negative / 2 + truth.kept
    following = np.append(variances[1:], variance)
    unconditional = truth.constant / (1 - stays)
    ahead = np.mean([unconditional + stays**k * (following - unconditional) for k in range(HORIZON)], axis=0)
    np.testing.assert_allclose(truth.forecast(returns, HORIZON)[1000:], ahead[1000:], rtol=1e-9)
    fitted = garch.fit(returns, asymmetric=asymmetric).forecast(returns, HORIZON)
    assert np.abs(fitted / ahead - 1)[1000:].mean() < 0.05


def test_coarse_prices_get_a_floor_and_one_day_ahead_is_refused():
    prices = simulate(900, price=1.0, step=0.01)
    task = make()
    hooks = task.hooks(task.config)
    note = hooks.review(prices).notes[-1]
    target = task.target(prices, task.config).iloc[:, 0] + hooks.known(prices)["ewma"].iloc[:, 0]
    close = prices.close.iloc[:, 0]
    still = (close.rolling(HORIZON + 1).max() == close.rolling(HORIZON + 1).min()).shift(-HORIZON) & target.notna()
    np.testing.assert_allclose(target[still], np.log(0.005 / close[still]), atol=1e-6)
    assert 0.0 < still.mean() < float(note.split("%")[0]) / 100 < 0.2
    with pytest.raises(DataError, match=r"coarse_prices: .*% of the one-day moves"):
        make(data={"horizon": 1}).hooks(make(data={"horizon": 1}).config).review(prices)
    assert make(data={"horizon": 1})._review(simulate(900)).notes[-1].startswith("0.")


def test_floor_ignores_the_rounding_of_adjusted_prices():
    close = pd.DataFrame({"A": [10.0, 10.0 + 1e-7, 10.5, 10.25]})
    from sp500.tasks import realized

    assert realized.find_floor(close)["A"].tolist()[2:] == pytest.approx([(0.25 / 10.5) ** 2, (0.125 / 10.25) ** 2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"npz_path": "a.npz"}}, "data.npz_path is not used by task volatility"),
        ({"data": {"features": ("log_return",)}}, "data.features is not used by task volatility"),
        ({"volatility": {"measure": "closed"}}, "volatility.measure"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({"task": "volatility", **settings})


def test_ranges_of_closes_alone_are_refused(tmp_path):
    settings = {"task": "volatility", "volatility": {"measure": "parkinson"}, "runs_dir": tmp_path / "runs"}
    with pytest.raises(DataError, match="no column high"):
        sp500.train(name="a", **settings)


def test_missing_arch_is_named_before_there_is_a_run(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "arch", None)
    with pytest.raises(ConfigError, match=r"arch is not installed: pip install 'sp500\[garch\]'"):
        sp500.train(name="a", runs_dir=tmp_path / "runs", task="volatility", volatility={"garch": True})
    assert not (tmp_path / "runs").exists()


def test_linear_model_beats_the_average_of_the_past(tmp_path):
    record = sp500.train(name="a", runs_dir=tmp_path, task="volatility", model={"kind": "linear"}, train={"epochs": 6})
    assert record.config["data"]["horizon"] == HORIZON
    assert record.data["notes"][-1] == "0.0% of the targets are below what rounded prices can show, and have its floor."
    assert set(record.metrics["naive"]) == RIVALS
    assert record.metrics["test"]["against"]["mean"]["mse"]["low"] > 0.2
    assert 0.3 < record.metrics["test"]["r2"] < 0.7
    assert "sharpe" not in record.metrics["test"]
    (group,) = group_runs([record.record])
    shown, gain = scores.rivals(group), record.metrics["test"]["against"]["har"]["qlike"]
    assert shown is not None
    assert len(shown.rows) == len(RIVALS)
    assert any("HAR" in row.cells and fixed(100 * gain["value"], 1, sign=True) in row.cells[-1] for row in shown.rows)
