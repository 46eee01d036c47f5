"""The test in detail, against pandas, scipy and loops; importance against scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression

from sp500 import breakdown
from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import ConfigError
from sp500.runs.details import Breakdown
from sp500.tasks import importance
from sp500.tasks.returns import Returns

COST = 7.0
Weigh = Callable[[pd.DataFrame], dict[str, float]]


def make_table(tickers: int, days: int = 260) -> pd.DataFrame:
    """Forecasts that know a little, of tickers that begin and end."""
    generator, parts = np.random.default_rng(0), []
    dates = pd.bdate_range("2020-11-02", periods=days)
    for number in range(tickers):
        own = dates[number : days - 2 * number if number % 2 else days]
        forecast = generator.standard_normal(len(own)) / 100
        earned = 0.3 * forecast + generator.standard_normal(len(own)) / 50
        parts.append(pd.DataFrame({"date": own, "ticker": f"T{number:02}", "forecast": forecast, "return": earned}))
    table = pd.concat(parts, ignore_index=True)
    loss, right = (table["return"] - table["forecast"]) ** 2, np.sign(table["forecast"]) == np.sign(table["return"])
    return table.assign(target=table["return"], loss=loss, naive=table["return"] ** 2, right=right.astype(float))


def detail(table: pd.DataFrame) -> Breakdown:
    position = np.sign(table["forecast"].to_numpy())
    return breakdown.break_down(table, position, metric="mse", over="zero", cost_bps=COST, horizon=1)


def earn_by_loop(table: pd.DataFrame, weigh: Weigh) -> pd.Series:
    """Return what the weights of each date earn after costs."""
    before: dict[str, float] = {}
    net = {}
    for date, day in table.groupby("date"):
        weights, earned = weigh(day), np.expm1(day.set_index("ticker")["return"])
        moved = sum(abs(weights.get(name, 0.0) - before.get(name, 0.0)) for name in {*weights, *before})
        net[date] = sum(weight * earned[name] for name, weight in weights.items()) - moved * COST / 1e4
        before = weights
    return pd.Series(net)


def top_less_bottom(groups: int) -> Weigh:
    def weigh(day: pd.DataFrame) -> dict[str, float]:
        if len(day) < groups:
            return {}
        ordered = day.sort_values("forecast")["ticker"].tolist()
        places = [int(place * groups // len(ordered)) for place in np.arange(len(ordered)) + 0.5]
        top, bottom = (
            [name for name, place in zip(ordered, places, strict=True) if place == own] for own in (groups - 1, 0)
        )
        return {name: 1 / len(top) for name in top} | {name: -1 / len(bottom) for name in bottom}

    return weigh


def sign(day: pd.DataFrame) -> dict[str, float]:
    return dict(zip(day["ticker"], np.sign(day["forecast"]) / len(day), strict=True))


@pytest.mark.parametrize(("name", "weigh"), [("model", sign), ("long_short", top_less_bottom(3))])
def test_strategy_is_that_of_a_loop_over_the_dates(name, weigh):
    table = make_table(9)
    net, details = earn_by_loop(table, weigh), detail(table)
    strategy = next(rule for rule in details["strategies"] if rule["name"] == name)
    assert strategy["annual_return_after_cost"] == pytest.approx(252 * net.mean(), rel=1e-9)
    assert strategy["sharpe_after_cost"] == pytest.approx(np.sqrt(252) * net.mean() / net.std(), rel=1e-9)
    value = (1 + net).cumprod()
    fall = 1 - value / value.cummax().clip(lower=1)
    assert strategy["max_drawdown"] == pytest.approx(fall.max(), rel=1e-9)
    years = (1 + net).groupby(net.index.year).prod() - 1
    assert strategy["years"] == pytest.approx({str(year): earned for year, earned in years.items()}, rel=1e-9)
    assert strategy["curve"] == pytest.approx(value.resample("ME").last().tolist(), rel=1e-9)
    assert strategy["drawdown"] == pytest.approx(fall.resample("ME").last().tolist(), abs=1e-12)
    assert details["months"] == [f"{day:%Y-%m-%d}" for day in net.groupby(net.index.to_period("M")).tail(1).index]


@pytest.mark.parametrize(("tickers", "groups"), [(5, 0), (7, 3), (29, 3), (30, 5), (100, 10)])
def test_portfolios_are_terciles_quintiles_or_deciles_of_equal_number(tickers, groups):
    day = {"date": "2021-01-04", "ticker": [f"T{n}" for n in range(tickers)], "forecast": np.arange(tickers) / 1000.0}
    table = pd.DataFrame(day)
    assert breakdown.count_groups(table) == groups
    if groups:
        held = [(position != 0).sum() for position in breakdown.form_portfolios(table, groups).values()]
        assert max(held[:-1]) - min(held[:-1]) <= 1
        assert sum(held[:-1]) == tickers
        assert breakdown.count_groups(table.assign(forecast=1.0)) == 0


def test_scores_of_tickers_and_years_are_those_of_pandas():
    table = make_table(7)
    details = detail(table)
    for scores, by in ((details["tickers"], table["ticker"]), (details["years"], table["date"].dt.year)):
        for score, (name, rows) in zip(scores, table.groupby(by), strict=True):
            assert score.get("ticker", score.get("year")) == name
            assert score["improvement"]["value"] == pytest.approx(
                1 - rows["loss"].sum() / rows["naive"].sum(), rel=1e-9
            )
            correlation = stats.spearmanr(rows["forecast"], rows["target"]).statistic
            assert score["information_coefficient"] == pytest.approx(correlation, rel=1e-9)
            assert score["hit_rate"] == (rows["forecast"] * rows["target"] > 0).mean()
    halves = [detail(half)["tickers"] for _, half in table.groupby(table["date"] > "2021-03-01")]
    together = breakdown.add_scores([{score["ticker"]: score for score in half} for half in halves])
    for score in details["tickers"]:
        added = together[score["ticker"]]
        assert added["improvement"]["value"] == pytest.approx(score["improvement"]["value"], rel=1e-9)
        assert added["hit_rate"] == pytest.approx(score["hit_rate"], rel=1e-9)


def test_bins_and_residuals_are_those_of_pandas_and_scipy():
    table = make_table(7)
    details = detail(table)
    places = (np.arange(len(table)) + 0.5) * 10 // len(table)
    groups = table.sort_values("forecast").groupby(places)
    assert [part["realised"] for part in details["bins"]] == pytest.approx(groups["target"].mean().tolist(), rel=1e-9)
    assert [part["forecast"] for part in details["bins"]] == pytest.approx(groups["forecast"].mean().tolist(), rel=1e-9)
    assert details["slope"] == pytest.approx(stats.linregress(table["forecast"], table["target"]).slope, rel=1e-9)
    residual, found = table["target"] - table["forecast"], details["residuals"]
    assert found["skew"] == pytest.approx(stats.skew(residual), rel=1e-9)
    assert found["kurtosis"] == pytest.approx(stats.kurtosis(residual, fisher=False), rel=1e-9)
    daily = residual.groupby(table["date"]).mean()
    assert found["autocorrelation"] == pytest.approx(daily.corr(daily.shift()), rel=1e-9)
    constant = detail(table.assign(forecast=0.001))
    assert (constant["bins"], constant["slope"], constant["groups"]) == ([], None, 0)


class _Reshaped:
    """A fitted model as scikit-learn calls it, and as a task calls it."""

    def __init__(self, model: LinearRegression) -> None:
        self.model = model

    def __call__(self, windows: Windows) -> np.ndarray:
        return self.model.predict(windows.rows.reshape(len(windows), -1))[:, None]


@pytest.mark.parametrize(("length", "names"), [(1, ["a", "b", "c"]), (4, ["a"])], ids=["features", "lags"])
def test_importance_is_that_of_scikit_learn(length, names):
    generator = np.random.default_rng(3)
    count, repeats = 400, 4
    x = generator.standard_normal((count, length * len(names)))
    y = x @ np.linspace(1, 0, x.shape[1]) + generator.standard_normal(count)
    model = LinearRegression().fit(x, y)
    index = pd.DataFrame({"date": np.repeat(pd.bdate_range("2020-01-01", periods=count // 2), 2), "return": 2.0 * y})
    valid = Windows(x.reshape(-1, len(names)), np.arange(count) * length, y, length, index)
    dataset = Dataset(valid, valid, valid, 2.0, state={"features": names})
    task = Returns(RunConfig())
    # As sklearn.inspection does: one seed for all columns, and each shuffle is of the rows that the last one left.
    order, orders = np.arange(count), [np.arange(count)]
    state = np.random.RandomState(np.random.RandomState(5).randint(np.iinfo(np.int32).max + 1))
    for _ in range(repeats):
        state.shuffle(order)
        orders.append(orders[-1][order])
    loss, features, lags = importance.permute(task, dataset, valid, _Reshaped(model), orders[1:])
    rival = permutation_importance(
        model, x, y, scoring="neg_mean_squared_error", n_repeats=repeats, random_state=5
    ).importances_mean
    assert loss == pytest.approx(4 * np.mean((model.predict(x) - y) ** 2), rel=1e-9)
    parts = features if length == 1 else lags[::-1]  # lag 0 comes first, and is the last day
    assert [part["increase"] for part in parts] == pytest.approx((4 * rival).tolist(), rel=1e-9)
    first = parts[0]
    assert first["low"] is not None
    assert 0 < first["low"] < first["increase"] / loss
    few = importance.find_importance(task, dataset, _Reshaped(model), repeats=1, seed=0, most=50)
    assert (few["windows"], [part["name"] for part in few["lags"]]) == (50, [str(lag) for lag in range(length)])
    with pytest.raises(ConfigError, match="none by name"):
        importance.permute(task, Dataset(valid, valid, valid), valid, _Reshaped(model), orders)
