"""Returns and direction: the loss, the naive forecasts beside the model, and what is said of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sk

from sp500.config import RunConfig, kinds
from sp500.data import pipeline
from sp500.data.features import features
from sp500.data.prices import Prices
from sp500.data.windows import Dataset, compute_naive_output
from sp500.tasks import catalog
from sp500.training.task import Task

MakeDataset = Callable[..., Dataset]
HORIZON = 2
SETTINGS = {"data": {"window": 10, "horizon": HORIZON}, "eval": {"threshold": 0.6}}
RETURNS = RunConfig.model_validate({"task": "returns", **SETTINGS})
DIRECTION = RunConfig.model_validate({"task": "direction", **SETTINGS})


@pytest.fixture(scope="module")
def close(bundled_stocks: Prices) -> pd.DataFrame:
    return bundled_stocks.close.loc["2014":"2020", ["JPM", "KO"]]


def dataset_of(close: pd.DataFrame, config: RunConfig) -> Dataset:
    prices = Prices({"close": close}, "test")
    table = features(prices, config.data.horizon)
    return pipeline.fit(prices, table, config.data, direction=config.task == "direction").dataset("float64")


@pytest.fixture(scope="module")
def returns(close: pd.DataFrame) -> Dataset:
    return dataset_of(close, RETURNS)


@pytest.fixture(scope="module")
def direction(close: pd.DataFrame) -> Dataset:
    return dataset_of(close, DIRECTION)


BOTH = pytest.mark.parametrize("config", [RETURNS, DIRECTION], ids=["returns", "direction"])


def over(close: pd.DataFrame, dataset: Dataset, days: int) -> np.ndarray:
    """Log return from each window's last day to so many days later, from the prices."""
    log = np.log(close)
    named = pd.MultiIndex.from_frame(dataset.test.index[["date", "ticker"]])
    return ((log.shift(-days) - log) * np.sign(days)).stack().reindex(named).to_numpy()


def ahead(close: pd.DataFrame, dataset: Dataset) -> np.ndarray:
    return over(close, dataset, HORIZON)


def behind(close: pd.DataFrame, dataset: Dataset) -> np.ndarray:
    return over(close, dataset, -HORIZON)


def outputs(dataset: Dataset, make: Callable[[int], np.ndarray]) -> dict[str, np.ndarray]:
    assert dataset.valid is not None
    return {"valid": make(len(dataset.valid))[:, None], "test": make(len(dataset.test))[:, None]}


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal(count)


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str) or bool(np.isfinite(value))


# Loss: a sum, so that parts of a batch add up.


def loss_of(config: RunConfig, output: np.ndarray, target: np.ndarray) -> float:
    return catalog.task(config).loss(torch.from_numpy(output)[:, None], torch.from_numpy(target)).item()


def test_loss_is_the_sum_of_squared_errors_or_of_cross_entropies():
    output, target = noise(9), noise(10)[:9]
    assert loss_of(RETURNS, output, target) == pytest.approx(9 * sk.mean_squared_error(target, output))
    ups = (target > 0).astype(float)
    assert loss_of(DIRECTION, output, ups) == pytest.approx(9 * sk.log_loss(ups, 1 / (1 + np.exp(-output))))


@BOTH
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_losses_of_parts_add_up_to_that_of_the_batch(config, cut):
    output, target = noise(9), (noise(10)[:9] > 0).astype(float)
    parts = loss_of(config, output[:cut], target[:cut]) + loss_of(config, output[cut:], target[cut:])
    assert parts == pytest.approx(loss_of(config, output, target), rel=1e-12)


# Returns.


def test_forecast_in_standard_deviations_is_judged_as_a_return(close, returns):
    made = outputs(returns, noise)
    found = catalog.task(RETURNS).judge(made, returns)["test"]
    forecast, truth = made["test"][:, 0] * returns.target_scale, ahead(close, returns)
    assert found["mse"] == pytest.approx(sk.mean_squared_error(truth, forecast))
    assert found["r2"] == pytest.approx(sk.r2_score(truth, forecast))
    assert found["samples"] == len(returns.test)


def test_perfect_forecast_is_judged_perfect(returns):
    perfect = {name: getattr(returns, name).targets[:, None] for name in ("valid", "test")}
    found = catalog.task(RETURNS).judge(perfect, returns)
    for part in ("valid", "test"):
        assert found[part]["mse"] == pytest.approx(0, abs=1e-12)
        assert found[part]["directional_accuracy"] == 1.0
        assert found[part]["information_coefficient"] == pytest.approx(1)
    assert found["test"]["improvement"]["value"] == pytest.approx(1)


def test_naive_forecasts_of_returns_are_zero_mean_and_previous(close, returns):
    naive = catalog.task(RETURNS).judge(outputs(returns, noise), returns)["naive"]
    truth, mean = ahead(close, returns), returns.train.targets.mean() * returns.target_scale
    expected = {
        "zero": (truth**2).mean(),
        "mean": ((truth - mean) ** 2).mean(),
        "previous": ((truth - behind(close, returns)) ** 2).mean(),
    }
    assert {name: scores["mse"] for name, scores in naive.items()} == pytest.approx(expected)


def test_training_mean_is_that_of_training_days(close, returns):
    last = pd.Timestamp(returns.card["splits"]["train"][1])
    log = np.log(close)
    # 50 days for the features and 10 for the window, of which one is shared.
    days = (log.shift(-HORIZON) - log).iloc[58:].loc[:last]
    assert returns.train.targets.mean() * returns.target_scale == pytest.approx(days.to_numpy().mean())
    assert returns.naive_output * returns.target_scale == pytest.approx(days.to_numpy().mean())


def test_improvement_is_over_the_best_naive_forecast(returns):
    found = catalog.task(RETURNS).judge(outputs(returns, noise), returns)
    errors = {name: scores["mse"] for name, scores in found["naive"].items()}
    improvement = found["test"]["improvement"]
    assert improvement["over"] == min(errors, key=errors.get)
    assert improvement["value"] == pytest.approx(1 - found["test"]["mse"] / min(errors.values()))
    assert improvement["low"] < improvement["value"] < improvement["high"]


def ratios_by_hand(held: pd.DataFrame) -> float:
    """Mean over both first days of the annualised ratio of `gain` times `position`, spread over the day's tickers."""
    earned = (held["position"] * held["gain"]).groupby(held["date"]).mean().sort_index()
    phases = [earned.iloc[first::HORIZON] for first in range(HORIZON)]
    return float(np.mean([one.mean() / one.std() for one in phases]) * np.sqrt(252 / HORIZON))


def test_trading_of_returns_follows_the_sign_of_the_forecast(close, returns):
    made = outputs(returns, noise)
    found = catalog.task(RETURNS).judge(made, returns)["test"]
    held = returns.test.index.assign(position=np.sign(made["test"][:, 0]), gain=np.expm1(ahead(close, returns)))
    assert found["sharpe"] == pytest.approx(ratios_by_hand(held))
    assert found["sharpe_after_cost"] < found["sharpe"]
    assert 0 < found["turnover"] <= 2


@BOTH
def test_buy_and_hold_of_the_same_windows_is_part_of_both_splits(close, config):
    dataset = dataset_of(close, config)
    found = catalog.task(config).judge(outputs(dataset, noise), dataset)
    held = dataset.test.index.assign(position=1.0, gain=np.expm1(ahead(close, dataset)))
    assert found["test"]["buy_and_hold"]["sharpe"] == pytest.approx(ratios_by_hand(held))
    assert found["valid"]["buy_and_hold"]["sharpe"] != found["test"]["buy_and_hold"]["sharpe"]
    low, high = found["test"]["buy_and_hold"]["sharpe_interval"]
    assert low < found["test"]["buy_and_hold"]["sharpe"] < high


def test_forecast_that_is_always_long_earns_nothing_in_excess_of_buy_and_hold(returns):
    found = catalog.task(RETURNS).judge(outputs(returns, np.ones), returns)
    assert (found["test"]["excess"]["days_apart"], found["test"]["excess"]["sharpe"]) == (0, None)
    assert found["test"]["sharpe"] == found["test"]["buy_and_hold"]["sharpe"]
    assert catalog.task(RETURNS).excess_sharpe(np.ones((len(returns.test), 1)), returns.test, returns) is None
    assert found["naive"]["zero"]["directional_accuracy"] is None
    assert 0 < found["naive"]["mean"]["directional_accuracy"] < 1


def test_many_tickers_are_ranked_per_date(bundled_stocks):
    many = dataset_of(bundled_stocks.close.loc["2016":"2020"].iloc[:, :6], RETURNS)
    made = outputs(many, noise)
    found = catalog.task(RETURNS).judge(made, many)
    table = many.test.index.assign(forecast=made["test"][:, 0])
    daily = [rows["forecast"].corr(rows["return"], method="spearman") for _, rows in table.groupby("date")]
    assert found["test"]["daily_ic"] == pytest.approx(np.mean(daily))
    assert "daily_ic" not in found["naive"]["mean"]  # the same forecast for every ticker ranks none


def test_probabilities_are_scored_and_compared_with_the_share_of_ups(close, direction):
    made = outputs(direction, noise)
    found = catalog.task(DIRECTION).judge(made, direction)
    probability, truth = 1 / (1 + np.exp(-made["test"][:, 0])), ahead(close, direction) > 0
    assert found["test"]["brier"] == pytest.approx(sk.brier_score_loss(truth, probability))
    assert found["test"]["log_loss"] == pytest.approx(sk.log_loss(truth, probability))
    share = np.full(len(truth), direction.train.targets.mean())
    assert found["naive"]["majority"]["brier"] == pytest.approx(sk.brier_score_loss(truth, share))
    assert "brier" not in found["naive"]["previous"]  # a class, not a probability


def test_constant_forecast_has_plain_metrics(returns):
    found = catalog.task(RETURNS).judge(outputs(returns, np.zeros), returns)
    assert is_plain(found)
    assert found["test"]["information_coefficient"] is None
    assert found["test"]["sharpe"] is None
    assert found["test"]["improvement"]["value"] <= 0


def test_without_validation_there_is_no_validation_score(returns):
    found = catalog.task(RETURNS).judge(outputs(returns, noise), replace(returns, valid=None))
    assert found.keys() == {"test", "naive"}


def test_predictions_name_day_and_ticker_of_each_forecast(close, returns):
    output = outputs(returns, noise)["test"]
    table = catalog.task(RETURNS).predictions(output, returns.test, returns)
    assert list(table.columns) == ["date", "ticker", "forecast", "target"]
    np.testing.assert_allclose(table["forecast"], output[:, 0] * returns.target_scale)
    np.testing.assert_allclose(table["target"], ahead(close, returns))


def test_windows_without_dates_are_judged_without_trading(linear_dataset):
    dataset = linear_dataset()
    task = catalog.task(RETURNS)
    found = task.judge(outputs(dataset, noise), dataset)
    assert found["naive"].keys() == {"zero", "mean"}
    assert "sharpe" not in found["test"]
    assert list(task.predictions(noise(32)[:, None], dataset.test, dataset).columns) == ["forecast", "target"]


# Direction.


def test_direction_is_judged_at_the_threshold_of_the_settings(close, direction):
    made = outputs(direction, noise)
    found = catalog.task(DIRECTION).judge(made, direction)["test"]
    probability, truth = 1 / (1 + np.exp(-made["test"][:, 0])), ahead(close, direction) > 0
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(truth, probability >= 0.6))
    assert found["confusion_matrix"] == sk.confusion_matrix(truth, probability >= 0.6).tolist()
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(truth, probability))


def test_naive_forecasts_of_direction_are_majority_and_previous(close, direction):
    naive = catalog.task(DIRECTION).judge(outputs(direction, noise), direction)["naive"]
    truth, majority = ahead(close, direction) > 0, direction.train.targets.mean() > 0.5
    assert naive["majority"]["accuracy"] == pytest.approx((truth == majority).mean())
    assert naive["previous"]["accuracy"] == pytest.approx((truth == (behind(close, direction) > 0)).mean())


def test_improvement_of_direction_is_in_the_error_rate(direction):
    found = catalog.task(DIRECTION).judge(outputs(direction, noise), direction)
    best = max(scores["accuracy"] for scores in found["naive"].values())
    expected = 1 - (1 - found["test"]["accuracy"]) / (1 - best)
    assert found["test"]["improvement"]["value"] == pytest.approx(expected)


def test_sure_outputs_have_plain_probabilities(direction):
    task = catalog.task(DIRECTION)
    sure = outputs(direction, lambda count: 1e4 * np.sign(noise(count)))
    assert is_plain(task.judge(sure, direction))
    assert set(task.predictions(sure["test"], direction.test, direction)["forecast"]) == {0.0, 1.0}


def test_float32_outputs_are_judged_like_float64_ones(direction):
    made = outputs(direction, noise)
    single = {name: output.astype(np.float32) for name, output in made.items()}
    first, second = (catalog.task(DIRECTION).judge(one, direction)["test"]["roc_auc"] for one in (made, single))
    assert first == pytest.approx(second, abs=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["all down", "all up"])
def test_test_part_of_one_class_is_judged_plainly(linear_dataset, share):
    # The majority forecast is then never wrong, and nothing improves on it.
    dataset = linear_dataset()
    train, valid, test = (
        replace(part, targets=np.full(len(part), share, dtype="float32"))
        for part in (dataset.train, dataset.valid, dataset.test)
    )
    naive_output = compute_naive_output(train.targets, direction=True)
    assert math.isfinite(naive_output)
    dataset = replace(dataset, train=train, valid=valid, test=test, naive_output=naive_output)
    found = catalog.task(DIRECTION).judge(outputs(dataset, noise), dataset)
    assert is_plain(found)
    assert found["test"]["improvement"]["value"] is None
    assert found["naive"]["majority"]["accuracy"] == 1.0


# The Sharpe ratio that a search keeps of every config.


@BOTH
@pytest.mark.parametrize("part", ["valid", "test"])
def test_excess_sharpe_of_a_config_is_that_which_its_trading_is_judged_by(close, config, part):
    dataset, task = dataset_of(close, config), catalog.task(config)
    made = outputs(dataset, noise)
    found = task.excess_sharpe(made[part], getattr(dataset, part), dataset)
    assert found == pytest.approx(task.judge(made, dataset)[part]["excess"]["sharpe"])
    assert task.excess_sharpe(made[part].astype(np.float32), getattr(dataset, part), dataset) == pytest.approx(found)


@BOTH
def test_windows_without_dates_have_no_sharpe(linear_dataset, config):
    dataset = linear_dataset()
    assert catalog.task(config).excess_sharpe(noise(32)[:, None], dataset.test, dataset) is None


# End to end.


@BOTH
def test_prepare_makes_windows_of_the_prices_asked_for(config):
    config = config.model_copy(update={"data": config.data.model_copy(update={"tickers": ("KO",), "window": 20})})
    dataset = catalog.task(config).prepare(config)
    assert dataset.card["tickers"] == ["KO"]
    assert dataset.train.length == 20
    assert set(np.unique(dataset.train.targets)) == {0.0, 1.0} or config.task == "returns"


@pytest.mark.parametrize("name", kinds.tasks())
def test_each_task_has_its_class(name):
    assert Task in resolve_name(kinds.tasks()[name].task).__mro__
