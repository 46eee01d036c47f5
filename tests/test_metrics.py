"""Metrics: against scikit-learn, SciPy, and hand-made examples."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sk

from sp500 import metrics
from sp500.bootstrap import stationary_bootstrap

GENERATOR = np.random.default_rng(0)
TARGET = 0.01 * GENERATOR.standard_normal(400)
FORECAST = 0.3 * TARGET + 0.01 * GENERATOR.standard_normal(400)
UP = (TARGET > 0).astype(float)
PROBABILITY = 1 / (1 + np.exp(-100 * FORECAST))


def is_plain(value: object) -> bool:
    """None, or numbers that are finite, all the way down."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str) or bool(np.isfinite(value))


# Regression.


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("mse", lambda: sk.mean_squared_error(TARGET, FORECAST)),
        ("mae", lambda: sk.mean_absolute_error(TARGET, FORECAST)),
        ("r2", lambda: sk.r2_score(TARGET, FORECAST)),
        ("directional_accuracy", lambda: sk.accuracy_score(TARGET > 0, FORECAST > 0)),
        ("information_coefficient", lambda: stats.spearmanr(TARGET, FORECAST)[0]),
        ("samples", lambda: 400),
    ],
)
def test_regression_metric_equals_its_reference(name: str, reference: Callable[[], float]) -> None:
    assert metrics.regression(FORECAST, TARGET)[name] == pytest.approx(reference(), rel=1e-12)


def test_day_without_a_move_has_no_direction_to_get_right() -> None:
    found = metrics.regression(np.array([1.0, -1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 1.0]))
    assert found["directional_accuracy"] == pytest.approx(1 / 3)


def test_information_coefficient_shares_the_rank_of_ties() -> None:
    forecast, target = np.array([1.0, 1, 2, 3]), np.array([1.0, 2, 2, 3])
    ranks = [stats.rankdata(values) for values in (forecast, target)]
    expected = np.corrcoef(*ranks)[0, 1]
    assert metrics.regression(forecast, target)["information_coefficient"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("forecast", "target", "undefined"),
    [
        (np.zeros(7), TARGET[:7], {"information_coefficient"}),
        (FORECAST[:7], np.zeros(7), {"r2", "information_coefficient", "directional_accuracy"}),
        (FORECAST[:7], np.full(7, 0.1), {"r2", "information_coefficient"}),
        (FORECAST[:1], TARGET[:1], {"r2", "information_coefficient"}),
    ],
    ids=["constant forecast", "no moves", "constant target", "one sample"],
)
def test_regression_metric_that_is_not_defined_is_none(
    forecast: np.ndarray, target: np.ndarray, undefined: set[str]
) -> None:
    found = metrics.regression(forecast, target)
    assert {name for name, value in found.items() if value is None} == undefined
    assert is_plain(found)


# Trading.


def days_of(returns: list[list[float]], tickers: str = "AB") -> pd.DataFrame:
    """One row per day and ticker; returns are simple, the table holds logs."""
    dates = pd.bdate_range("2020-01-06", periods=len(returns))
    rows = [
        {"date": date, "ticker": ticker, "return": np.log1p(value)}
        for date, row in zip(dates, returns, strict=True)
        for ticker, value in zip(tickers, row, strict=True)
    ]
    return pd.DataFrame(rows)


def test_trading_of_three_days_and_two_tickers_equals_the_sum_by_hand() -> None:
    index = days_of([[0.02, -0.01], [0.01, 0.03], [-0.02, 0.01]])
    position = np.array([1.0, 1, 1, -1, 0, -1])
    # Half of the capital in each ticker: day by day what is earned, and how much is traded to get there.
    earned = np.array([(0.02 - 0.01) / 2, (0.01 - 0.03) / 2, (0 - 0.01) / 2])
    traded = np.array([0.5 + 0.5, 0 + 1.0, 0.5 + 0])
    kept = earned - traded * 10 / 10_000
    found = metrics.trading(position, index, cost_bps=10)
    assert found["turnover"] == pytest.approx(traded.mean())
    assert found["sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1) * np.sqrt(252))
    assert found["sharpe_after_cost"] == pytest.approx(kept.mean() / kept.std(ddof=1) * np.sqrt(252))


def test_trading_does_not_depend_on_the_order_of_rows() -> None:
    index = days_of([[0.02, -0.01], [0.01, 0.03], [-0.02, 0.01]])
    position = np.array([1.0, 1, 1, -1, 0, -1])
    order = np.array([3, 0, 5, 1, 4, 2])
    mixed = metrics.trading(position[order], index.iloc[order].reset_index(drop=True), cost_bps=10)
    assert mixed == pytest.approx(metrics.trading(position, index, cost_bps=10))


def test_capital_goes_to_the_tickers_that_are_there() -> None:
    index = days_of([[0.02, -0.01], [0.01, 0.03], [-0.02, 0.01]]).drop(index=[1])  # B is listed on the second day
    found = metrics.trading(np.ones(5), index, cost_bps=0)
    earned = np.array([0.02, (0.01 + 0.03) / 2, (-0.02 + 0.01) / 2])
    assert found["sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1) * np.sqrt(252))
    assert found["turnover"] == pytest.approx(np.mean([1.0, 0.5 + 0.5, 0.0]))


def test_longer_horizon_trades_every_so_many_days() -> None:
    index = days_of([[0.02], [9.0], [0.01], [9.0], [-0.02], [9.0]], "A")
    found = metrics.trading(np.array([1.0, 1, -1, 1, 1, 1]), index, cost_bps=0, horizon=2)
    earned = np.array([0.02, -0.01, -0.02])
    assert found["sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1) * np.sqrt(252 / 2))
    assert found["turnover"] == pytest.approx((1 + 2 + 2) / 3)


@pytest.mark.parametrize("cost", [0.0, 5.0, 50.0])
def test_costs_lower_the_sharpe_ratio_after_costs_alone(cost: float) -> None:
    generator = np.random.default_rng(0)
    index = days_of((0.01 * generator.standard_normal((100, 2))).tolist())
    position = generator.choice([-1.0, 1.0], 200)
    free, charged = (metrics.trading(position, index, cost_bps=bps) for bps in (0.0, cost))
    assert (charged["sharpe"], charged["turnover"]) == (free["sharpe"], free["turnover"])
    assert (
        charged["sharpe_after_cost"] == free["sharpe"] if cost == 0 else charged["sharpe_after_cost"] < free["sharpe"]
    )


@pytest.mark.parametrize(
    ("position", "returns"),
    [([0.0, 0.0, 0.0], [0.1, 0.2, -0.1]), ([1.0, 1.0, 1.0], [0.01, 0.01, 0.01]), ([1.0], [0.1])],
    ids=["never invested", "the same every day", "one day"],
)
def test_sharpe_ratio_that_is_not_defined_is_none(position: list[float], returns: list[float]) -> None:
    found = metrics.trading(np.array(position), days_of([[value] for value in returns], "A"), cost_bps=0)
    assert found["sharpe"] is None
    assert is_plain(found)


def test_daily_sharpe_and_moments_are_those_of_the_returns_before_costs() -> None:
    generator = np.random.default_rng(0)
    returns = 0.01 * generator.standard_t(4, (250, 2))
    position = generator.choice([-1.0, 0.0, 1.0], 500)
    found = metrics.trading(position, days_of(returns.tolist()), cost_bps=10)
    earned = (position.reshape(250, 2) * returns).mean(axis=1)
    assert found["daily_sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1))
    assert found["skew"] == pytest.approx(stats.skew(earned))
    assert found["kurtosis"] == pytest.approx(stats.kurtosis(earned, fisher=False))
    assert found["observations"] == 250
    assert found["sharpe"] == pytest.approx(found["daily_sharpe"] * np.sqrt(252))


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_daily_sharpe_alone_is_that_of_trading(horizon: int) -> None:
    generator = np.random.default_rng(1)
    index = days_of((0.01 * generator.standard_normal((60, 3))).tolist(), "ABC").drop(index=[4, 50, 51])
    index = index.sample(frac=1, random_state=0)
    position = generator.choice([-1.0, 1.0], len(index))
    found = metrics.trading(position, index, cost_bps=5, horizon=horizon)
    assert metrics.daily_sharpe(position, index, horizon=horizon) == pytest.approx(found["daily_sharpe"])
    assert found["observations"] == -(-60 // horizon)


def test_moments_of_returns_that_never_change_are_none() -> None:
    found = metrics.trading(np.ones(3), days_of([[0.01]] * 3, "A"), cost_bps=0)
    undefined = {name for name, value in found.items() if value is None}
    assert undefined >= {"sharpe", "daily_sharpe", "skew", "kurtosis"}
    assert found["observations"] == 3


# The deflated Sharpe ratio.


def spread_of(variance: float, count: int) -> list[float | None]:
    """So many numbers with exactly this sample variance."""
    drawn = np.random.default_rng(0).standard_normal(count)
    return list((drawn - drawn.mean()) / drawn.std(ddof=1) * np.sqrt(variance))


def test_deflated_sharpe_is_that_of_the_papers_example() -> None:
    # Bailey and Lopez de Prado 2014, "A numerical example": 2.5 a year over 5 years of 250 days, the best of 100.
    trials = spread_of(0.5 / 250, 100)
    found = metrics.deflated_sharpe(2.5 / np.sqrt(250), trials, skew=-3.0, kurtosis=10.0, observations=1250)
    assert found is not None
    assert found["expected_max"] == pytest.approx(0.1132, abs=5e-5)
    assert found["probability"] == pytest.approx(0.9004, abs=5e-5)
    assert found["trials"] == 100


def test_expected_maximum_is_about_that_of_draws_without_skill() -> None:
    draws = np.random.default_rng(0).standard_normal((20_000, 50)).max(axis=1)
    found = metrics.deflated_sharpe(0.1, spread_of(1.0, 50), skew=0.0, kurtosis=3.0, observations=100)
    assert found is not None
    assert found["expected_max"] == pytest.approx(draws.mean(), rel=0.02)


def test_two_trials_are_deflated_as_worked_out_by_hand() -> None:
    found = metrics.deflated_sharpe(0.1, [0.0, 0.2], skew=-0.5, kurtosis=4.0, observations=401)
    # Z^-1(1 - 1/2) is 0, so that only Z^-1(1 - 1/2e) = Z^-1(0.81606) = 0.90045 counts.
    expected = np.sqrt(0.02) * 0.5772157 * 0.90045
    assert found is not None
    assert found["expected_max"] == pytest.approx(expected, rel=1e-4)
    ratio = (0.1 - expected) * 20 / np.sqrt(1 + 0.05 + 0.0075)
    assert found["probability"] == pytest.approx(stats.norm.cdf(ratio), rel=1e-4)


def test_trials_that_are_all_alike_leave_the_probability_of_the_ratio_itself() -> None:
    found = metrics.deflated_sharpe(0.1, [0.1] * 10, skew=0.0, kurtosis=3.0, observations=101)
    assert found is not None
    assert found["expected_max"] == 0
    assert found["probability"] == pytest.approx(stats.norm.cdf(0.1 * 10 / np.sqrt(1 + 0.5 * 0.01)))


def test_more_tries_or_a_wider_spread_deflate_more() -> None:
    def probability(count: int, variance: float) -> float:
        found = metrics.deflated_sharpe(0.1, spread_of(variance, count), skew=0.0, kurtosis=3.0, observations=500)
        assert found is not None
        return found["probability"]

    assert probability(10, 0.001) > probability(100, 0.001) > probability(1000, 0.001)
    assert probability(10, 0.001) > probability(10, 0.01)


def test_trial_without_a_ratio_counts_as_a_try() -> None:
    some, more = ([0.0, 0.1, 0.2, *[None] * count] for count in (0, 5))
    few, many = (metrics.deflated_sharpe(0.1, trials, 0.0, 3.0, 500) for trials in (some, more))
    assert few is not None
    assert many is not None
    assert (few["trials"], many["trials"]) == (3, 8)
    assert many["expected_max"] > few["expected_max"]


@pytest.mark.parametrize(
    ("sharpe", "trials", "skew", "observations"),
    [
        (0.1, [0.1], 0.0, 500),
        (0.1, [0.1, None], 0.0, 500),
        (0.1, [], 0.0, 500),
        (None, [0.1, 0.2], 0.0, 500),
        (0.1, [0.1, 0.2], None, 500),
        (0.1, [0.1, 0.2], 0.0, 1),
    ],
    ids=["one trial", "one ratio", "none", "no ratio", "no moments", "one day"],
)
def test_deflated_sharpe_that_is_not_defined_is_none(
    sharpe: float | None, trials: list[float | None], skew: float | None, observations: int
) -> None:
    assert metrics.deflated_sharpe(sharpe, trials, skew, 3.0, observations) is None


def test_ratio_without_an_error_has_no_probability() -> None:
    # Returns of two values, 3 of 4 days up: skew -2 / sqrt(3), kurtosis 7 / 3, and at a ratio of -sqrt(3) no spread.
    found = metrics.deflated_sharpe(-np.sqrt(3.0), [0.1, 0.2], -2 / np.sqrt(3.0), 7 / 3 - 1e-9, 500)
    assert found is not None
    assert found["probability"] is None
    assert found["expected_max"] > 0


# Classification.


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("accuracy", sk.accuracy_score),
        ("precision", sk.precision_score),
        ("recall", sk.recall_score),
        ("f1", sk.f1_score),
        ("confusion_matrix", sk.confusion_matrix),
    ],
)
def test_classification_metric_equals_scikit_learns_at_any_threshold(
    name: str, reference: Callable[..., object], threshold: float
) -> None:
    found = metrics.classification(PROBABILITY, UP, threshold)
    said = np.array([value >= threshold for value in PROBABILITY])
    np.testing.assert_allclose(found[name], reference(UP, said), rtol=1e-12)


def test_roc_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    ups, downs = PROBABILITY[UP == 1], PROBABILITY[UP == 0]
    pairs = np.mean([(up > down) + 0.5 * (up == down) for up in ups for down in downs])
    assert metrics.classification(PROBABILITY, UP, 0.5)["roc_auc"] == pytest.approx(pairs)


def test_probability_at_the_threshold_counts_as_up() -> None:
    assert metrics.classification(np.array([0.5, 0.4]), np.array([1.0, 0.0]), 0.5)["accuracy"] == 1.0


@pytest.mark.parametrize("truth", [0.0, 1.0])
@pytest.mark.parametrize("said", [0.1, 0.9])
def test_one_class_alone_has_no_roc_auc_and_a_whole_confusion_matrix(truth: float, said: float) -> None:
    found = metrics.classification(np.full(5, said), np.full(5, truth), 0.5)
    assert found["roc_auc"] is None
    assert np.sum(found["confusion_matrix"]) == 5
    assert found["confusion_matrix"][int(truth)][int(said > 0.5)] == 5
    assert is_plain(found)


def test_multiclass_metrics_equal_scikit_learns() -> None:
    generator = np.random.default_rng(1)
    target, scores = generator.integers(4, size=200), generator.standard_normal((200, 4))
    said = scores.argmax(axis=1)
    found = metrics.multiclass(scores, target)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(target, said))
    assert found["f1"] == pytest.approx(sk.f1_score(target, said, average="macro"))
    assert found["confusion_matrix"] == sk.confusion_matrix(target, said).tolist()


def test_class_that_never_comes_has_its_row_in_the_confusion_matrix() -> None:
    assert metrics.multiclass(np.eye(3)[[0, 1, 1]], np.array([0, 1, 0]))["confusion_matrix"] == [
        [1, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
    ]


# Improvement over the naive forecast.


def test_improvement_is_the_share_of_loss_saved() -> None:
    dates = np.arange(100)
    found = metrics.improvement(np.full(100, 0.9), np.full(100, 1.0), dates, resamples=200, seed=0)
    assert found == pytest.approx({"value": 0.1, "low": 0.1, "high": 0.1})


def test_interval_of_independent_days_agrees_with_scipys_bootstrap() -> None:
    generator = np.random.default_rng(3)
    naive = generator.exponential(size=1500)
    loss = naive * (0.9 + 0.4 * generator.standard_normal(1500))
    found = metrics.improvement(loss, naive, np.arange(1500), resamples=4000, seed=0, block=1.0)
    expected = stats.bootstrap(
        (loss, naive), lambda x, y, axis: 1 - x.sum(axis) / y.sum(axis), paired=True, n_resamples=4000,
        method="percentile", random_state=generator,
    ).confidence_interval  # fmt: skip
    width = expected.high - expected.low
    assert found["low"] == pytest.approx(expected.low, abs=0.04 * width)
    assert found["high"] == pytest.approx(expected.high, abs=0.04 * width)
    assert found["low"] < found["value"] < found["high"]


def test_interval_resamples_days_so_copies_of_a_day_do_not_narrow_it() -> None:
    generator = np.random.default_rng(3)
    naive, dates = generator.exponential(size=300), np.arange(300)
    loss = naive * (0.9 + 0.4 * generator.standard_normal(300))
    once = metrics.improvement(loss, naive, dates, resamples=500, seed=0)
    tenfold = metrics.improvement(*(np.tile(part, 10) for part in (loss, naive, dates)), resamples=500, seed=0)
    assert tenfold == pytest.approx(once)


def test_interval_is_the_same_for_the_same_seed_and_not_for_another() -> None:
    generator = np.random.default_rng(3)
    arguments = generator.random(50), generator.random(50), np.arange(50)
    found = [metrics.improvement(*arguments, resamples=100, seed=seed)["low"] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(("days", "resamples"), [(1, 100), (100, 0)], ids=["one day", "no resamples"])
def test_interval_that_is_not_defined_is_none(days: int, resamples: int) -> None:
    found = metrics.improvement(np.full(days, 0.9), np.ones(days), np.arange(days), resamples=resamples, seed=0)
    assert found == {"value": pytest.approx(0.1), "low": None, "high": None}


def test_improvement_over_a_perfect_naive_forecast_is_none() -> None:
    found = metrics.improvement(np.ones(100), np.zeros(100), np.arange(100), resamples=100, seed=0)
    assert found == {"value": None, "low": None, "high": None}


def test_interval_over_a_naive_forecast_that_is_nearly_always_right_is_plain() -> None:
    naive = np.zeros(100)
    naive[50] = 1.0
    found = metrics.improvement(np.ones(100), naive, np.arange(100), resamples=200, seed=0)
    assert found["value"] == -99.0
    assert is_plain(found)


def test_interval_of_many_days_takes_little_memory() -> None:
    loss, dates = GENERATOR.random(20_000), np.arange(20_000)
    tracemalloc.start()
    metrics.improvement(loss, loss, dates, resamples=200, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20


# Stationary bootstrap.


@pytest.mark.parametrize("block", [5.0, 20.0])
def test_bootstrap_blocks_have_the_mean_length_asked_for(block: float) -> None:
    rows = stationary_bootstrap(2000, 200, block, np.random.default_rng(0))
    follows = (np.diff(rows, axis=1) % 2000) == 1
    # A block ends with probability 1 / block, and one start in 2000 follows by chance.
    assert 1 / (1 - follows.mean()) == pytest.approx(block, rel=0.05)


def test_bootstrap_draws_every_row_about_as_often() -> None:
    rows = stationary_bootstrap(50, 4000, 5.0, np.random.default_rng(0))
    counts = np.bincount(rows.ravel(), minlength=50)
    assert rows.shape == (4000, 50)
    assert counts.sum() == 200_000
    np.testing.assert_allclose(counts, 4000, rtol=0.08)


def test_bootstrap_of_blocks_of_one_is_the_plain_one() -> None:
    rows = stationary_bootstrap(100, 2000, 1.0, np.random.default_rng(0))
    variance = rows.mean(axis=1).var()
    assert variance == pytest.approx((100**2 - 1) / 12 / 100, rel=0.1)


def test_bootstrap_interval_covers_the_truth_of_correlated_days() -> None:
    generator, covered = np.random.default_rng(0), 0
    for _ in range(200):
        noise = generator.standard_normal(400)
        series = np.zeros(400)
        for day in range(1, 400):
            series[day] = 0.5 * series[day - 1] + noise[day]
        rows = stationary_bootstrap(400, 300, 20.0, generator)
        low, high = np.quantile(series[rows].mean(axis=1), (0.025, 0.975))
        covered += low < 0 < high
    assert 0.86 < covered / 200 <= 0.99


# The best naive forecast.


@pytest.mark.parametrize(("largest", "expected"), [(False, "zero"), (True, "mean")])
def test_best_naive_forecast_is_the_hardest_to_beat(largest: bool, expected: str) -> None:
    naive = {"zero": {"x": 1.0}, "previous": {"x": 2.0}, "mean": {"x": 3.0}}
    assert metrics.best_naive(naive, "x", largest=largest) == expected
