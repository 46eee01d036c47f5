"""The data pipeline end to end, on real prices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sp500.config import DataConfig
from sp500.data import pipeline
from sp500.data.features import features
from sp500.data.prices import Prices
from sp500.data.splits import split
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError


def built(prices: Prices, dtype: str = "float64", *, direction: bool = False, **settings: object) -> Dataset:
    config = DataConfig(**settings)
    return pipeline.fit(prices, features(prices, config.horizon), config, direction=direction).dataset(dtype)


def contents(windows: Windows) -> np.ndarray:
    return np.stack([windows.rows[start : start + windows.length] for start in windows.starts])


@pytest.fixture(scope="module")
def three(bundled_stocks: Prices) -> Prices:
    """Three stocks over seven years; the first is listed late."""
    close = bundled_stocks.close.loc["2014":"2020", ["AAPL", "JPM", "KO"]].copy()
    close.iloc[:700, 0] = np.nan
    return Prices({"close": close}, "test")


def test_index_gives_about_5800_training_windows():
    dataset = pipeline.prepare(DataConfig(), direction=False).dataset("float32")
    assert 5600 < len(dataset.train) < 6000
    assert dataset.features == 6
    assert dataset.card["windows"] == {
        "train": len(dataset.train), "valid": len(dataset.valid or ()), "test": len(dataset.test)
    }  # fmt: skip


def test_card_says_where_the_data_came_from(bundled):
    card = built(bundled).card
    assert card["source"] == "bundled"
    assert card["sha256"] == bundled.sha256
    assert card["rows"] == len(bundled.close)
    assert (card["first_date"], card["last_date"]) == ("1990-01-02", "2022-12-28")
    assert set(card["splits"]) == {"train", "valid", "test"}


def test_features_are_scaled_by_the_training_dates_alone(three):
    dataset = built(three, norm="zscore")
    table = features(three)
    cut = split(table.dates, test_fraction=0.15, valid_from_train=0.175, gap=31)
    rows = np.concatenate([one.x[one.dates <= cut.train[1]] for one in table.series])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    ko = table.series[2]
    first = int(np.flatnonzero(ko.dates == cut.test[0])[0])
    expected = (ko.x[first - 29 : first + 1] - mean) / deviation
    place = int(np.flatnonzero(dataset.test.index["ticker"] == "KO")[0])
    np.testing.assert_allclose(contents(dataset.test)[place], expected, rtol=1e-9, atol=1e-9)


def test_targets_times_their_scale_are_the_log_returns(three):
    dataset = built(three, horizon=3)
    log = np.log(three.close)
    ahead = (log.shift(-3) - log).stack()
    named = pd.MultiIndex.from_frame(dataset.test.index[["date", "ticker"]])
    np.testing.assert_allclose(dataset.test.targets * dataset.target_scale, ahead.reindex(named), rtol=1e-9)
    np.testing.assert_allclose(dataset.test.index["return"], ahead.reindex(named), rtol=1e-9)


def test_target_scale_is_about_the_spread_of_training_returns(three):
    dataset = built(three)
    assert dataset.train.targets.std() == pytest.approx(1.0, abs=0.05)
    assert built(three, norm="none").target_scale == 1.0


def test_direction_targets_are_1_for_up_and_0_for_not(three):
    dataset = built(three, direction=True)
    assert dataset.target_scale == 1.0
    np.testing.assert_array_equal(dataset.test.targets, (dataset.test.index["return"] > 0).astype(float))


def test_all_tickers_are_cut_at_the_same_dates(three):
    dataset = built(three)
    for part in (dataset.valid, dataset.test):
        assert part is not None
        spans = part.index.groupby("ticker")["date"].agg(["min", "max"])
        assert len(spans) == 3
        assert spans["min"].nunique() == spans["max"].nunique() == 1


def test_gap_sessions_lie_between_validation_and_test(three):
    dataset = built(three, window=10, horizon=5)
    sessions = three.close.index
    assert dataset.valid is not None
    last, first = dataset.valid.index["date"].max(), dataset.test.index["date"].min()
    assert ((sessions > last) & (sessions < first)).sum() >= 15


def test_multiplier_copies_the_training_windows_alone(three):
    once, thrice = built(three), built(three, multiplier=3)
    assert len(thrice.train) == 3 * len(once.train)
    np.testing.assert_array_equal(contents(thrice.train)[: len(once.train)], contents(once.train))
    np.testing.assert_array_equal(thrice.train.targets, np.tile(once.train.targets, 3))
    np.testing.assert_array_equal(thrice.test.rows, once.test.rows)
    difference = contents(thrice.train)[len(once.train) : 2 * len(once.train)] - contents(once.train)
    # Features are in training standard deviations after scaling, and so is the noise.
    np.testing.assert_allclose(difference.std(axis=(0, 1)), 0.1, rtol=0.05)


@pytest.mark.parametrize("norm", ["zscore", "minmax", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_that_is_not_finite_reaches_a_model(three, norm, dtype):
    dataset = built(three, dtype, norm=norm, multiplier=2)
    for part in (dataset.train, dataset.valid, dataset.test):
        assert part is not None
        assert part.rows.dtype == part.targets.dtype == dtype
        assert np.isfinite(part.rows).all()
        assert np.isfinite(part.targets).all()


def test_window_over_a_repaired_gap_has_no_hole(csv, ohlcv):
    ohlcv.loc[100, "volume"] = np.nan
    source = csv(ohlcv.drop(index=[200, 201]))
    dates = features(pipeline.load(DataConfig(source=source))).series[0].dates
    assert list(dates) == list(ohlcv["date"].to_numpy().astype("datetime64[D]")[49:])


def test_carried_forward_session_makes_no_wild_feature(csv, ohlcv):
    table = features(pipeline.load(DataConfig(source=csv(ohlcv.drop(index=[200])))))
    assert np.abs(table.series[0].x[:, table.names.index("volume_change")]).max() < 1.0


@pytest.mark.parametrize("window", [500, 5000])
def test_window_longer_than_the_dates_is_refused(three, window):
    with pytest.raises(DataError, match="too_short"):
        built(three, window=window)
