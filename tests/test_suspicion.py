"""Files that hold the next day's values are told, in a note and in front of every verdict; real prices are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sp500 import api
from sp500.data import pipeline
from sp500.data.features import features
from sp500.data.prices import Prices
from sp500.report import terminal
from sp500.report.models import verdicts
from sp500.report.models.results import group_runs
from sp500.suspicion import WARNING, find_signs

CARD = {"first_date": "2000-01-03", "tickers": ["A"]}
NAIVE = [{"directional_accuracy": 0.53, "accuracy": 0.53}, {"directional_accuracy": None}]


def notes(prices: Prices, horizon: int = 1) -> list[str]:
    """What the training part says against itself."""
    table = features(prices, horizon)
    dates = table.dates
    return pipeline.leak_notes(table, dates[int(0.7 * len(dates))], horizon)


def with_open(close: pd.DataFrame, opens: pd.DataFrame, seed: int = 0) -> Prices:
    """Prices whose high, low and volume are drawn so that every rule of validation holds."""
    generator = np.random.default_rng(seed)
    width = 1 + np.abs(generator.normal(0, 0.004, close.shape))
    high, low = np.maximum(close, opens) * width, np.minimum(close, opens) / width
    volume = pd.DataFrame(1e6 * np.exp(generator.normal(0, 0.2, close.shape)), close.index, close.columns)
    return Prices({"open": opens, "high": high, "low": low, "close": close, "volume": volume}, "test")


@pytest.mark.parametrize("horizon", [1, 5, 20])
def test_bundled_prices_are_not_suspicious(bundled, bundled_stocks, horizon):
    assert notes(bundled, horizon) == notes(bundled_stocks, horizon) == []


@pytest.mark.parametrize("days", [150, 400, 1000])
@pytest.mark.parametrize("horizon", [1, 20])
def test_short_random_walks_are_not_suspicious(days, horizon):
    steps = np.random.default_rng(days).standard_t(4, (days, 20)) * 0.01
    dates = pd.bdate_range("2010-01-04", periods=days)
    close = pd.DataFrame(50 * np.exp(steps.cumsum(axis=0)), dates, [f"T{number}" for number in range(20)])
    assert notes(Prices({"close": close}, "test"), horizon) == []


@pytest.mark.parametrize("horizon", [1, 5])
def test_open_of_the_next_close_is_named_with_its_column_and_ticker(bundled_stocks, horizon):
    close = bundled_stocks.close.loc["2010":, ["KO", "JPM", "AAPL"]]
    opens = close.shift(1).bfill()
    opens["JPM"] = close["JPM"].shift(-1).ffill()
    (note,) = notes(with_open(close, opens), horizon)
    last = close.index[49:][int(0.7 * (len(close) - 49))]
    gap = np.log(opens["JPM"] / close["JPM"].shift(1)).loc[:last]
    after = np.log(close["JPM"]).diff().shift(-1).loc[:last]
    figure = max(gap.corr(after), gap.corr(after, method="spearman"))
    assert f"gap (column open) {figure:.2f} in JPM." in note


def test_returns_in_place_of_prices_are_named_by_their_autocorrelation(bundled):
    gross = bundled.close.loc["2010":].pct_change().dropna() + 1
    (note,) = notes(Prices({"close": gross}, "test"), 5)
    change = np.log(gross["^GSPC"]).diff().iloc[50:]
    assert change.autocorr() < -0.4
    assert "log_return (column close) \N{MINUS SIGN}0.5" in note


@pytest.mark.parametrize(
    ("test", "signs"),
    [
        ({"r2": 0.09, "directional_accuracy": 0.59, "information_coefficient": 0.29}, ""),
        ({"r2": 0.11}, "R² 0.11"),
        ({"directional_accuracy": 0.61}, "right direction 61.0%"),
        ({"information_coefficient": 0.31, "daily_ic": 0.31}, "IC 0.31, daily IC 0.31"),
        ({"accuracy": 0.59, "roc_auc": 0.64}, ""),
        ({"accuracy": 0.61, "roc_auc": 0.66}, "ROC-AUC 0.66, right direction 61.0%"),
        ({"r2": None, "directional_accuracy": None}, ""),
    ],
)
def test_metrics_above_a_bound_are_signs(test, signs):
    assert find_signs({"task": "returns", "data": {"horizon": 1}}, CARD, {**test, "samples": 1239}, NAIVE) == signs


@pytest.mark.parametrize(
    ("config", "card", "test", "naive"),
    [
        ({"task": "images", "data": {}}, CARD, {"accuracy": 0.98, "samples": 1000}, NAIVE),
        ({"task": "returns", "data": {}}, {"source": "a.npz"}, {"r2": 0.9, "samples": 1000}, NAIVE),
        ({"task": "returns", "data": {}}, CARD, {"r2": 0.12, "samples": 60}, NAIVE),
        ({"task": "returns", "data": {"horizon": 20}}, CARD, {"r2": 0.2, "samples": 1239}, NAIVE),
        # A market that mostly rises: to say so every day is no sign.
        ({"task": "returns", "data": {}}, CARD, {"directional_accuracy": 0.68, "samples": 1239},
         [{"directional_accuracy": 0.67}]),
    ],
)  # fmt: skip
def test_other_data_luck_and_a_rising_market_are_no_signs(config, card, test, naive):
    assert find_signs(config, card, test, naive) == ""


def test_every_verdict_on_a_file_with_tomorrow_in_it_begins_with_the_warning(csv, bundled, tmp_path):
    close = bundled.close.loc["2015":]
    fields = with_open(close, close.shift(-1).ffill()).fields
    table = pd.DataFrame({name: frame["^GSPC"] for name, frame in fields.items()}).rename_axis("date")
    settings = {
        "data": {"source": csv(table)},
        "model": {"kind": "linear"},
        "train": {"epochs": 12, "lr": 0.01, "batch_size": 128},
        "runs_dir": tmp_path,
    }
    trained = api.train(name="a", **settings)
    walked = api.walk_forward(name="w", folds=2, test_days=150, **settings)
    scaled = api.scale(name="s", arms=("streaming",), multipliers=(1,), **settings)
    for record in (trained, walked):
        assert any("gap (column open)" in note for note in record.data["notes"])
    (group,) = group_runs([trained.record])
    assert verdicts.models(group).startswith(WARNING)
    for record in (trained, walked, scaled):
        lines = terminal.text(record.record, tmp_path).splitlines()
        assert sum(line.startswith(WARNING) for line in lines) == 1, record.name
