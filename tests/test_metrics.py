"""Metrics: against scikit-learn, SciPy, and hand-made examples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sk

from sp500 import metrics
from sp500.data.augment import stationary_bootstrap

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
def test_regression_metric_equals_its_reference(name, reference):
    assert metrics.regression(FORECAST, TARGET)[name] == pytest.approx(reference(), rel=1e-12)


def test_directional_accuracy_leaves_out_days_without_a_move_and_forecasts_of_zero():
    assert metrics.regression(np.zeros(400), TARGET)["directional_accuracy"] is None
    found = metrics.regression(np.array([1.0, -1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 1.0]))
    assert found["directional_accuracy"] == pytest.approx(1 / 3)


def test_information_coefficient_shares_the_rank_of_ties():
    forecast, target = np.array([1.0, 1, 2, 3]), np.array([1.0, 2, 2, 3])
    expected = np.corrcoef(*map(stats.rankdata, (forecast, target)))[0, 1]
    assert metrics.regression(forecast, target)["information_coefficient"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("forecast", "target", "undefined"),
    [
        (np.ones(7), TARGET[:7], {"information_coefficient"}),
        (FORECAST[:7], np.zeros(7), {"r2", "information_coefficient", "directional_accuracy"}),
        (FORECAST[:7], np.full(7, 0.1), {"r2", "information_coefficient"}),
        (FORECAST[:1], TARGET[:1], {"r2", "information_coefficient"}),
    ],
    ids=["constant forecast", "no moves", "constant target", "one sample"],
)
def test_regression_metric_that_is_not_defined_is_none(forecast, target, undefined):
    found = metrics.regression(forecast, target)
    assert {name for name, value in found.items() if value is None} == undefined
    assert is_plain(found)


# Trading.


def days_of(returns: list[list[float]], tickers: str = "AB") -> pd.DataFrame:
    """One row per day and ticker; returns are simple, the table holds logs."""
    dates = pd.bdate_range("2020-01-06", periods=len(returns))
    index = pd.MultiIndex.from_product([dates, list(tickers)], names=["date", "ticker"])
    return pd.DataFrame({"return": np.log1p(np.ravel(returns))}, index).reset_index()


THREE_DAYS = [[0.02, -0.01], [0.01, 0.03], [-0.02, 0.01]]
POSITION = np.array([1.0, 1, 1, -1, 0, -1])


def test_trading_of_three_days_and_two_tickers_equals_the_sum_by_hand_in_any_order_of_rows():
    index = days_of(THREE_DAYS)
    # Half of the capital in each ticker: day by day what is earned, and how much is traded to get there.
    earned = np.array([(0.02 - 0.01) / 2, (0.01 - 0.03) / 2, (0 - 0.01) / 2])
    traded = np.array([0.5 + 0.5, 0 + 1.0, 0.5 + 0])
    kept = earned - traded * 10 / 10_000
    found = metrics.trading(POSITION, index, cost_bps=10)
    assert found["turnover"] == pytest.approx(traded.mean())
    assert found["sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1) * np.sqrt(252))
    assert found["sharpe_after_cost"] == pytest.approx(kept.mean() / kept.std(ddof=1) * np.sqrt(252))
    order = np.array([3, 0, 5, 1, 4, 2])
    mixed = metrics.trading(POSITION[order], index.iloc[order].reset_index(drop=True), cost_bps=10)
    assert mixed.pop("excess") == pytest.approx(found.pop("excess"))
    assert {key: pytest.approx(value) for key, value in found.items()} == mixed


def test_capital_goes_to_the_tickers_that_are_there():
    index = days_of(THREE_DAYS).drop(index=[1])  # B is listed on the second day
    found = metrics.trading(np.ones(5), index, cost_bps=0)
    earned = np.array([0.02, (0.01 + 0.03) / 2, (-0.02 + 0.01) / 2])
    assert found["sharpe"] == pytest.approx(earned.mean() / earned.std(ddof=1) * np.sqrt(252))
    assert found["turnover"] == pytest.approx(np.mean([1.0, 0.5 + 0.5, 0.0]))


def test_longer_horizon_is_the_mean_over_its_first_days():
    index = days_of([[0.02], [0.03], [0.01], [0.01], [-0.02], [0.04]], "A")
    found = metrics.trading(np.array([1.0, 1, -1, 1, 1, 1]), index, cost_bps=0, horizon=2)
    phases = np.array([0.02, -0.01, -0.02]), np.array([0.03, 0.01, 0.04])
    expected = np.mean([earned.mean() / earned.std(ddof=1) for earned in phases]) * np.sqrt(252 / 2)
    assert found["sharpe"] == pytest.approx(expected)
    assert found["turnover"] == pytest.approx(((1 + 2 + 2) / 3 + (1 + 0 + 0) / 3) / 2)


def test_longer_horizon_hangs_little_on_its_first_day():
    daily = 0.01 * np.random.default_rng(0).standard_normal(400)
    monthly = np.expm1(np.convolve(daily, np.ones(20), "valid"))
    index = days_of(monthly[:, None].tolist(), "A")
    whole = [metrics.trading(np.ones(381 - cut), index[cut:], cost_bps=0, horizon=20)["sharpe"] for cut in (0, 10)]
    single = [monthly[cut::20].mean() / monthly[cut::20].std(ddof=1) * np.sqrt(252 / 20) for cut in (0, 10)]
    assert abs(whole[0] - whole[1]) < 0.5 * abs(single[0] - single[1])


@pytest.mark.parametrize("cost", [0.0, 5.0, 50.0])
def test_costs_lower_the_sharpe_ratio_after_costs_alone(cost):
    generator = np.random.default_rng(0)
    index = days_of((0.01 * generator.standard_normal((100, 2))).tolist())
    position = generator.choice([-1.0, 1.0], 200)
    free, charged = (metrics.trading(position, index, cost_bps=bps) for bps in (0.0, cost))
    assert (charged["sharpe"], charged["turnover"]) == (free["sharpe"], free["turnover"])
    assert (charged["sharpe_after_cost"] < free["sharpe"]) == (cost > 0)


@pytest.mark.parametrize(
    ("position", "returns"),
    [([0.0, 0.0, 0.0], [0.1, 0.2, -0.1]), ([1.0, 1.0, 1.0], [0.01, 0.01, 0.01]), ([1.0], [0.1])],
    ids=["never invested", "the same every day", "one day"],
)
def test_sharpe_ratio_that_is_not_defined_is_none(position, returns):
    found = metrics.trading(np.array(position), days_of([[value] for value in returns], "A"), cost_bps=0)
    assert found["sharpe"] is None
    assert is_plain(found)


def test_excess_is_that_of_the_returns_before_costs_less_those_of_always_being_long():
    generator = np.random.default_rng(0)
    returns = 0.01 * generator.standard_t(4, (250, 2))
    position = generator.choice([-1.0, 0.0, 1.0, 1.0, 1.0], 500)
    found = metrics.trading(position, days_of(returns.tolist()), cost_bps=10)["excess"]
    held = position.reshape(250, 2)
    excess = (held * returns).mean(axis=1) - returns.mean(axis=1)
    assert found["sharpe"] == pytest.approx(excess.mean() / excess.std(ddof=1))
    assert found["skew"] == pytest.approx(stats.skew(excess))
    assert found["kurtosis"] == pytest.approx(stats.kurtosis(excess, fisher=False))
    assert found["observations"] == 250
    assert found["days_apart"] == (held != 1).any(axis=1).sum()


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_excess_sharpe_alone_is_that_of_trading(horizon):
    generator = np.random.default_rng(1)
    index = days_of((0.01 * generator.standard_normal((60, 3))).tolist(), "ABC").drop(index=[4, 50, 51])
    index = index.sample(frac=1, random_state=0)
    position = generator.choice([-1.0, 1.0], len(index))
    found = metrics.trading(position, index, cost_bps=5, horizon=horizon)["excess"]
    assert metrics.excess_sharpe(position, index, horizon=horizon) == pytest.approx(found["sharpe"])
    assert found["observations"] == 60 // horizon


def test_position_that_is_always_long_has_no_excess():
    found = metrics.trading(np.ones(3), days_of([[0.01], [0.02], [-0.01]], "A"), cost_bps=0)["excess"]
    assert found == {"sharpe": None, "skew": None, "kurtosis": None, "observations": 3, "days_apart": 0}


def test_interval_of_a_sharpe_ratio_of_independent_days_is_mertenss():
    returns = 0.0005 + 0.01 * np.random.default_rng(0).standard_t(6, 20_000)
    found = metrics.trading(np.ones(20_000), days_of(returns[:, None].tolist(), "A"), cost_bps=0)
    ratio, skew, kurtosis = returns.mean() / returns.std(), stats.skew(returns), stats.kurtosis(returns, fisher=False)
    error = np.sqrt((1 - skew * ratio + (kurtosis - 1) / 4 * ratio**2) / 20_000) * np.sqrt(252)
    low, high = found["sharpe_interval"]
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert (high + low) / 2 == pytest.approx(found["sharpe"])


# The cross-section of a date.


def test_ranks_within_dates_are_averaged_and_small_dates_left_out():
    generator = np.random.default_rng(2)
    index = days_of((0.01 * generator.standard_normal((300, 6))).tolist(), "ABCDEF").drop(index=[0, 1])
    forecast = 0.3 * index["return"].to_numpy() + 0.01 * generator.standard_normal(len(index))
    found = metrics.cross_section(forecast, index)
    daily = [
        stats.spearmanr(rows["forecast"], rows["return"])[0]
        for _, rows in index.assign(forecast=forecast).groupby("date")
        if len(rows) >= 5
    ]
    assert len(daily) == 299
    assert found["daily_ic"] == pytest.approx(np.mean(daily))
    assert found["daily_ic_t"] == pytest.approx(np.mean(daily) / (np.std(daily) / np.sqrt(299)), rel=0.25)


def test_forecast_that_moves_with_the_market_alone_ranks_no_ticker():
    generator = np.random.default_rng(3)
    market = np.repeat(0.01 * generator.standard_normal(200), 6)
    index = days_of((market + 0.001 * generator.standard_normal(1200)).reshape(200, 6).tolist(), "ABCDEF")
    assert metrics.regression(market, index["return"].to_numpy())["information_coefficient"] > 0.9
    assert metrics.cross_section(market, index) == {}


# The deflated Sharpe ratio.


def spread_of(variance: float, count: int) -> list[float | None]:
    """So many numbers with exactly this sample variance."""
    drawn = np.random.default_rng(0).standard_normal(count)
    return list((drawn - drawn.mean()) / drawn.std(ddof=1) * np.sqrt(variance))


def deflated(sharpe: float, trials: list[float | None], skew: float, kurtosis: float, observations: int) -> list[float]:
    found = metrics.deflated_sharpe(sharpe, trials, skew, kurtosis, observations)
    assert found is not None
    return [found["expected_max"], found["probability"], found["trials"]]


def test_deflated_sharpe_is_that_of_the_papers_example():
    # Bailey and Lopez de Prado 2014, "A numerical example": 2.5 a year over 5 years of 250 days, the best of 100.
    found = deflated(2.5 / np.sqrt(250), spread_of(0.5 / 250, 100), -3.0, 10.0, 1250)
    assert found == pytest.approx([0.1132, 0.9004, 100], abs=5e-5)


def test_expected_maximum_is_about_that_of_draws_without_skill():
    draws = np.random.default_rng(0).standard_normal((20_000, 50)).max(axis=1)
    assert deflated(0.1, spread_of(1.0, 50), 0.0, 3.0, 100)[0] == pytest.approx(draws.mean(), rel=0.02)


def test_two_trials_are_deflated_as_worked_out_by_hand():
    # Z^-1(1 - 1/2) is 0, so that only Z^-1(1 - 1/2e) = Z^-1(0.81606) = 0.90045 counts.
    expected = np.sqrt(0.02) * 0.5772157 * 0.90045
    ratio = (0.1 - expected) * 20 / np.sqrt(1 + 0.05 + 0.0075)
    found = deflated(0.1, [0.0, 0.2], -0.5, 4.0, 401)
    assert found == pytest.approx([expected, stats.norm.cdf(ratio), 2], rel=1e-4)


def test_trials_that_are_all_alike_leave_the_probability_of_the_ratio_itself():
    found = deflated(0.1, [0.1] * 10, 0.0, 3.0, 101)
    assert found == pytest.approx([0, stats.norm.cdf(0.1 * 10 / np.sqrt(1 + 0.5 * 0.01)), 10])


def test_more_tries_or_a_wider_spread_deflate_more():
    def probability(count: int, variance: float) -> float:
        return deflated(0.1, spread_of(variance, count), 0.0, 3.0, 500)[1]

    assert probability(10, 0.001) > probability(100, 0.001) > probability(1000, 0.001)
    assert probability(10, 0.001) > probability(10, 0.01)


def test_trial_without_a_ratio_counts_as_a_try():
    few, many = (deflated(0.1, [0.0, 0.1, 0.2, *[None] * count], 0.0, 3.0, 500) for count in (0, 5))
    assert (few[2], many[2]) == (3, 8)
    assert many[0] > few[0]


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
def test_deflated_sharpe_that_is_not_defined_is_none(sharpe, trials, skew, observations):
    assert metrics.deflated_sharpe(sharpe, trials, skew, 3.0, observations) is None


def test_ratio_without_an_error_has_no_probability():
    # Returns of two values, 3 of 4 days up: skew -2 / sqrt(3), kurtosis 7 / 3, and at a ratio of -sqrt(3) no spread.
    expected, probability, _ = deflated(-np.sqrt(3.0), [0.1, 0.2], -2 / np.sqrt(3.0), 7 / 3 - 1e-9, 500)
    assert probability is None
    assert expected > 0


def excess_of(days_apart: int, sharpe: float = 0.1) -> dict[str, float]:
    return {"sharpe": sharpe, "skew": 0.0, "kurtosis": 3.0, "observations": 500, "days_apart": days_apart}


def test_config_that_is_nearly_always_long_has_no_probability():
    same, other = (metrics.deflated_excess(excess_of(days), [0.0, 0.1, None]) for days in (19, 20))
    assert same == {"sharpe": 0.1, "days_apart": 19, "trials": 3, "expected_max": None, "probability": None}
    assert other == {"sharpe": 0.1, "days_apart": 20} | metrics.deflated_sharpe(0.1, [0.0, 0.1, None], 0.0, 3.0, 500)
    assert metrics.deflated_excess(None, [0.0, 0.1]) is None


def test_drift_that_a_config_holds_is_no_skill():
    # A market that rises by 0.1 standard deviations a day, and positions that are drawn: long on 9 of 10 days.
    generator, sure, held = np.random.default_rng(0), 0, 0
    for _ in range(100):
        index = days_of((0.001 + 0.01 * generator.standard_normal((600, 1))).tolist(), "A")
        positions = [np.where(generator.random(600) < 0.9, 1.0, -1.0) for _ in range(6)]
        trials = [metrics.excess_sharpe(position, index) for position in positions]
        best = metrics.trading(positions[int(np.argmax(trials))], index, cost_bps=0)
        sure += metrics.deflated_excess(best["excess"], trials)["probability"] >= 0.95
        held += metrics.deflated_sharpe(best["sharpe"] / np.sqrt(252), trials, 0.0, 3.0, 600)["probability"] >= 0.95
    assert sure <= 9
    assert held > 20  # what the drift alone would be taken for


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
def test_classification_metric_equals_scikit_learns_at_any_threshold(name, reference, threshold):
    found = metrics.classification(PROBABILITY, UP, threshold)
    said = np.array([value >= threshold for value in PROBABILITY])
    np.testing.assert_allclose(found[name], reference(UP, said), rtol=1e-12)


def test_roc_auc_is_the_share_of_pairs_in_the_right_order():
    ups, downs = PROBABILITY[UP == 1], PROBABILITY[UP == 0]
    pairs = np.mean([(up > down) + 0.5 * (up == down) for up in ups for down in downs])
    assert metrics.classification(PROBABILITY, UP, 0.5)["roc_auc"] == pytest.approx(pairs)
    at_the_threshold = metrics.classification(np.array([0.5, 0.4]), np.array([1.0, 0.0]), 0.5)
    assert at_the_threshold["accuracy"] == 1.0


@pytest.mark.parametrize("truth", [0.0, 1.0])
@pytest.mark.parametrize("said", [0.1, 0.9])
def test_one_class_alone_has_no_roc_auc_and_a_whole_confusion_matrix(truth, said):
    found = metrics.classification(np.full(5, said), np.full(5, truth), 0.5)
    assert found["roc_auc"] is None
    assert np.sum(found["confusion_matrix"]) == 5
    assert found["confusion_matrix"][int(truth)][int(said > 0.5)] == 5
    assert is_plain(found)


def test_multiclass_metrics_equal_scikit_learns():
    generator = np.random.default_rng(1)
    target, scores = generator.integers(4, size=200), generator.standard_normal((200, 4))
    said = scores.argmax(axis=1)
    found = metrics.multiclass(scores, target)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(target, said))
    assert found["f1"] == pytest.approx(sk.f1_score(target, said, average="macro"))
    assert found["confusion_matrix"] == sk.confusion_matrix(target, said).tolist()


def test_class_that_never_comes_has_its_row_in_the_confusion_matrix():
    found = metrics.multiclass(np.eye(3)[[0, 1, 1]], np.array([0, 1, 0]))
    assert found["confusion_matrix"] == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


# Improvement over the naive forecast.


@pytest.mark.parametrize(
    ("loss", "naive", "dates", "value", "bound"),
    [
        (np.full(100, 0.9), np.ones(100), np.arange(100), 0.1, 0.1),
        (np.full(5, 0.9), np.ones(5), np.zeros(5), 0.1, None),
        (np.ones(100), np.zeros(100), np.arange(100), None, None),
    ],
    ids=["the share of loss saved", "one day", "a perfect naive forecast"],
)
def test_improvement_is_the_share_of_loss_saved_where_it_is_defined(loss, naive, dates, value, bound):
    expected = {"value": value, "low": bound, "high": bound}
    assert metrics.improvement(loss, naive, dates) == {name: pytest.approx(x) for name, x in expected.items()}


def test_interval_of_independent_days_agrees_with_scipys_bootstrap():
    generator = np.random.default_rng(3)
    naive = generator.exponential(size=1500)
    loss = naive * (0.9 + 0.4 * generator.standard_normal(1500))
    found = metrics.improvement(loss, naive, np.arange(1500))
    expected = stats.bootstrap(
        (loss, naive), lambda x, y, axis: 1 - x.sum(axis) / y.sum(axis), paired=True, n_resamples=4000,
        method="percentile", random_state=generator,
    ).confidence_interval  # fmt: skip
    width = expected.high - expected.low
    assert found["low"] == pytest.approx(expected.low, abs=0.15 * width)
    assert found["high"] == pytest.approx(expected.high, abs=0.15 * width)
    assert found["low"] < found["value"] < found["high"]


def test_interval_takes_days_as_observations_so_copies_of_a_day_do_not_narrow_it():
    generator = np.random.default_rng(3)
    naive, dates = generator.exponential(size=300), np.arange(300)
    loss = naive * (0.9 + 0.4 * generator.standard_normal(300))
    once = metrics.improvement(loss, naive, dates)
    tenfold = metrics.improvement(*(np.tile(part, 10) for part in (loss, naive, dates)))
    assert tenfold == pytest.approx(once)


def test_interval_over_a_naive_forecast_that_is_nearly_always_right_is_plain():
    naive = np.zeros(100)
    naive[50] = 1.0
    found = metrics.improvement(np.ones(100), naive, np.arange(100))
    assert found["value"] == -99.0
    assert is_plain(found)


# Stationary bootstrap.


@pytest.mark.parametrize("block", [5.0, 20.0])
def test_bootstrap_blocks_have_the_mean_length_asked_for(block):
    rows = stationary_bootstrap(2000, 200, block, np.random.default_rng(0))
    follows = (np.diff(rows, axis=1) % 2000) == 1
    # A block ends with probability 1 / block, and one start in 2000 follows by chance.
    assert 1 / (1 - follows.mean()) == pytest.approx(block, rel=0.05)


def test_bootstrap_draws_every_row_about_as_often():
    rows = stationary_bootstrap(50, 4000, 5.0, np.random.default_rng(0))
    counts = np.bincount(rows.ravel(), minlength=50)
    assert rows.shape == (4000, 50)
    assert counts.sum() == 200_000
    np.testing.assert_allclose(counts, 4000, rtol=0.08)


def test_bootstrap_of_blocks_of_one_is_the_plain_one():
    rows = stationary_bootstrap(100, 2000, 1.0, np.random.default_rng(0))
    variance = rows.mean(axis=1).var()
    assert variance == pytest.approx((100**2 - 1) / 12 / 100, rel=0.1)


def test_bootstrap_interval_covers_the_truth_of_correlated_days():
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
def test_best_naive_forecast_is_the_hardest_to_beat(largest, expected):
    naive = {"zero": {"x": 1.0}, "previous": {"x": 2.0}, "mean": {"x": 3.0}}
    assert metrics.best_naive(naive, "x", largest=largest) == expected


@pytest.mark.parametrize("horizon", [1, 3])
def test_growth_compounds_what_each_trade_earns_after_costs(horizon):
    generator = np.random.default_rng(0)
    dates = pd.bdate_range("2020-01-01", periods=90)
    index = pd.DataFrame({"date": np.repeat(dates, 2), "ticker": ["A", "B"] * 90})
    index["return"] = generator.normal(0, 0.02, 180)
    position = np.sign(generator.normal(size=180))
    found = metrics.growth(position, index, cost_bps=10, horizon=horizon)
    value, held, expected = 1.0, np.zeros(2), {}
    for day in range(0, 90, horizon):
        wanted = position[2 * day : 2 * day + 2] / 2
        earned = float(wanted @ np.expm1(index["return"].to_numpy()[2 * day : 2 * day + 2]))
        value *= 1 + earned - float(np.abs(wanted - held).sum()) * 10 / 1e4
        held = wanted
        expected[f"{dates[day]:%Y-%m}"] = (f"{dates[day]:%Y-%m-%d}", value)
    assert found["dates"] == [date for date, _ in expected.values()]
    assert found["values"] == pytest.approx([one for _, one in expected.values()], rel=1e-12)
