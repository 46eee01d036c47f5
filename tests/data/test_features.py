"""Features: what each is (against pandas), and that nothing after a day can change what was known on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data import normalize, pipeline
from sp500.data.features import CLOSE_FEATURES, OHLCV_FEATURES, Series, features
from sp500.data.prices import Prices
from sp500.data.splits import split
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.tasks import catalog
from sp500.training.loop import fit
from sp500.training.worker import SoloWorker

HORIZON = 2
TICKERS = ["AAPL", "JPM", "KO"]


def of_close(close: pd.DataFrame) -> Prices:
    return Prices({"close": close}, "test")


def of_fields(close: pd.DataFrame) -> Prices:
    """All five fields, made up around the closing prices."""
    opening = close.shift(1).fillna(close)
    high, low = np.maximum(opening, close) * 1.01, np.minimum(opening, close) * 0.99
    volume = close * 0 + 1e6 * (1 + np.random.default_rng(0).random(close.shape))
    return Prices({"open": opening, "high": high, "low": low, "close": close, "volume": volume}, "test")


@pytest.fixture(scope="module")
def close(bundled_stocks: Prices) -> pd.DataFrame:
    """Three stocks over five years; one is listed late."""
    close = bundled_stocks.close.loc["2016":"2020", TICKERS].copy()
    close.iloc[:200, 0] = np.nan
    return close


# What they are.


def rsi(change: np.ndarray) -> float:
    gains = sum(value for value in change if value > 0)
    losses = sum(-value for value in change if value < 0)
    return 2 * gains / (gains + losses) - 1


REFERENCE: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "log_return": lambda day: np.log(day["close"] / day["close"].shift(1)),
    "momentum_5": lambda day: np.log(day["close"] / day["close"].shift(5)),
    "momentum_20": lambda day: np.log(day["close"] / day["close"].shift(20)),
    "volatility_20": lambda day: np.log(day["close"]).diff().rolling(20).std(),
    "rsi_14": lambda day: np.log(day["close"]).diff().rolling(14).apply(rsi, raw=True),
    "distance_50": lambda day: np.log(day["close"]) - np.log(day["close"]).rolling(50).mean(),
    "range": lambda day: np.log(day["high"]) - np.log(day["low"]),
    "gap": lambda day: np.log(day["open"] / day["close"].shift(1)),
    "volume_change": lambda day: np.log((1 + day["volume"]) / (1 + day["volume"].shift(1))),
}


@pytest.mark.parametrize("name", CLOSE_FEATURES + OHLCV_FEATURES)
def test_feature_equals_its_definition_in_pandas(close, name):
    prices = of_fields(close[["KO"]])
    table = features(prices)
    day = pd.DataFrame({field: frame["KO"] for field, frame in prices.fields.items()})
    expected = REFERENCE[name](day).iloc[49:]
    found = table.series[0].x[:, table.names.index(name)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("horizon", [1, 5])
def test_target_is_the_log_return_over_the_horizon(close, horizon):
    series = features(of_close(close[["KO"]]), horizon).series[0]
    price = close["KO"].to_numpy()
    for row in (0, 1, 100, len(series.y) - 1 - horizon):
        assert series.y[row] == pytest.approx(np.log(price[49 + row + horizon] / price[49 + row]))
    assert np.isnan(series.y[-horizon:]).all()
    assert np.isfinite(series.y[:-horizon]).all()


def test_features_start_on_the_50th_day_of_each_ticker(close):
    series = {one.ticker: one for one in features(of_close(close)).series}
    assert series["KO"].dates[0] == np.datetime64(close.index[49], "D")
    assert series["AAPL"].dates[0] == np.datetime64(close.index[200 + 49], "D")


def test_days_of_all_tickers_are_the_union_of_theirs(close):
    table = features(of_close(close))
    assert list(table.dates) == list(close.index[49:].to_numpy().astype("datetime64[D]"))


def test_prices_that_never_move_have_finite_features(close):
    series = features(of_close(close[["KO"]] * 0 + 5.0)).series[0]
    np.testing.assert_allclose(series.x, 0.0, atol=1e-12)


def test_features_depend_on_ratios_of_prices_only(close):
    once, times = (features(of_close(table)).series[2].x for table in (close, close * 8.0))
    np.testing.assert_allclose(once, times, rtol=1e-9, atol=1e-12)


def test_ticker_with_too_few_days_is_refused_by_name(close):
    with pytest.raises(DataError, match=r"too_short: KO has 50 prices"):
        features(of_close(close[["KO"]].iloc[:50]))
    assert len(features(of_close(close[["KO"]].iloc[:51])).series[0].dates) == 2


# No look-ahead: a changed future leaves the past as it is, to the last bit.


def times_seven(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return values * 7


def shuffled(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return generator.permutation(values)


@dataclass(frozen=True)
class Altered:
    """Prices, the same with everything from `row` on altered, and the last day that was not."""

    before: Prices
    after: Prices
    last: np.datetime64


def altered(prices: Prices, row: int, how: Callable[..., np.ndarray]) -> Altered:
    fields = {}
    for name, frame in prices.fields.items():
        values = frame.to_numpy().copy()
        values[row:] = how(values[row:], np.random.default_rng(row))
        fields[name] = pd.DataFrame(values, frame.index, frame.columns)
    last = prices.close.index[row - 1].to_datetime64().astype("datetime64[D]")
    return Altered(prices, Prices(fields, "test"), last)


def assert_same_bits(first: np.ndarray, second: np.ndarray) -> None:
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("how", [times_seven, shuffled])
@pytest.mark.parametrize("make", [of_close, of_fields])
@given(data=st.data())
def test_features_and_targets_before_a_date_do_not_change_with_what_comes_after(close, make, how, data):
    # Row 260 on: every ticker has some features before.
    case = altered(make(close), data.draw(st.integers(260, len(close) - 1), label="row"), how)
    pairs = zip(features(case.before, HORIZON).series, features(case.after, HORIZON).series, strict=True)
    for before, after in pairs:
        known = int((before.dates <= case.last).sum())
        assert known > 0
        assert_same_bits(before.dates[:known], after.dates[:known])
        assert_same_bits(before.x[:known], after.x[:known])
        assert_same_bits(before.y[: known - HORIZON], after.y[: known - HORIZON])


@pytest.mark.parametrize("make", [of_close, of_fields])
@given(data=st.data())
def test_features_know_neither_that_the_table_goes_on_nor_when_it_began(close, make, data):
    prices = make(close)
    end = data.draw(st.integers(260, len(close) - 1), label="end")
    begin = data.draw(st.integers(1, len(close) - 120), label="begin")
    for rows, same in ((slice(end), lambda x, n: x[:n]), (slice(begin, None), lambda x, n: x[-n:])):
        cut = Prices({name: frame.iloc[rows] for name, frame in prices.fields.items()}, "test")
        for whole, part in zip(features(prices, HORIZON).series, features(cut, HORIZON).series, strict=True):
            assert_same_bits(same(whole.x, len(part.x)), part.x)


def fitted(series: tuple[Series, ...], last: np.datetime64, norm: str) -> normalize.Normalizer:
    return normalize.fit(np.concatenate([pipeline.until(one, last).x for one in series]), norm)


@pytest.mark.parametrize("how", [times_seven, shuffled])
@pytest.mark.parametrize("norm", ["zscore", "minmax"])
@given(data=st.data())
def test_normaliser_up_to_a_date_does_not_change_with_what_comes_after(close, norm, how, data):
    case = altered(of_close(close), data.draw(st.integers(260, len(close) - 1), label="row"), how)
    before, after = (fitted(features(prices).series, case.last, norm) for prices in (case.before, case.after))
    assert_same_bits(before.shift, after.shift)
    assert_same_bits(before.scale, after.scale)


CONFIG = DataConfig(window=10, horizon=HORIZON, multiplier=2)


def dataset_of(prices: Prices, config: DataConfig, *, direction: bool = False) -> Dataset:
    return pipeline.fit(prices, features(prices, config.horizon), config, direction=direction).dataset("float32")


def contents(windows: Windows) -> np.ndarray:
    """Each window copied out: [window, day, feature]."""
    return np.stack([windows.rows[start : start + windows.length] for start in windows.starts])


def assert_same_known_windows(before: Windows, after: Windows, last: np.datetime64, horizon: int) -> int:
    """Windows that end by `last` are the same, and so are the targets known by then."""
    ended = (before.index["date"] <= last).to_numpy()
    days = np.unique(before.index["date"])
    realised = ended & before.index["date"].isin(days[: max((days <= last).sum() - horizon, 0)]).to_numpy()
    assert_same_bits(contents(before)[ended], contents(after)[ended])
    assert_same_bits(before.targets[realised], after.targets[realised])
    previous = (before.index["previous"].to_numpy(), after.index["previous"].to_numpy())
    assert_same_bits(previous[0][ended], previous[1][ended])
    return int(ended.sum())


@pytest.mark.parametrize("how", [times_seven, shuffled])
@pytest.mark.parametrize("direction", [False, True])
@given(data=st.data())
def test_windows_and_scales_before_a_date_do_not_change_with_what_comes_after(close, how, direction, data):
    prices = of_close(close)
    dates = features(prices, HORIZON).dates
    cut = split(dates, test_fraction=0.15, valid_from_train=0.175, gap=CONFIG.purge)
    # The earliest change is the first that no training target sees.
    train_known = int(np.searchsorted(dates, cut.train[1])) + 49 + HORIZON
    case = altered(prices, data.draw(st.integers(train_known + 1, len(close) - 1), label="row"), how)
    before, after = (dataset_of(which, CONFIG, direction=direction) for which in (case.before, case.after))
    assert before.target_scale == after.target_scale
    assert_same_bits(before.train.rows, after.train.rows)
    assert_same_bits(before.train.starts, after.train.starts)
    assert_same_bits(before.train.targets, after.train.targets)
    assert before.valid is not None
    assert after.valid is not None
    assert_same_known_windows(before.valid, after.valid, case.last, HORIZON)
    assert_same_known_windows(before.test, after.test, case.last, HORIZON)


@pytest.mark.parametrize("how", [times_seven, shuffled])
@pytest.mark.parametrize("kind", ["linear", "mlp", "lstm", "transformer"])
def test_predictions_before_a_date_do_not_change_with_what_comes_after(close, kind, how):
    size = {} if kind == "linear" else {"hidden": 8, "layers": 1}
    # Without validation the last epoch's weights are kept: after five steps no model beats the naive forecast.
    data = CONFIG.model_copy(update={"valid_from_train": 0.0})
    config = RunConfig(
        data=data, model=ModelConfig(kind=kind, **size), train=TrainConfig(epochs=1, max_steps=5, batch_size=64)
    )
    case = altered(of_close(close), len(close) - 60, how)
    found = []
    for prices in (case.before, case.after):
        dataset, task = dataset_of(prices, data), catalog.task(config)
        result = fit(task, dataset, config, SoloWorker(torch.device("cpu")))
        found.append(task.predictions(result.outputs["test"], dataset.test, dataset))
    known = (found[0]["date"] <= case.last).to_numpy()
    assert 0 < known.sum() < len(known)
    first, second = (table["forecast"].to_numpy() for table in found)
    assert_same_bits(first[known], second[known])
    assert (first[~known] != second[~known]).any()


def test_first_day_without_a_volume_is_left_out_of_the_features(close):
    whole = of_fields(close[["KO"]].dropna().iloc[-200:])
    fields = {name: table.copy() for name, table in whole.fields.items()}
    fields["volume"].iloc[0] = np.nan
    missing, complete = features(Prices(fields, "test")).series[0], features(whole).series[0]
    assert (missing.dates == complete.dates).all()
    assert missing.x.tobytes() == complete.x.tobytes()
