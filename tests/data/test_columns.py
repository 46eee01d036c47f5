"""Columns of a user's file as features: which are read, which are named, and what is refused by column and date."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import price_files
import pytest

from sp500.config import DataConfig, RunConfig
from sp500.data import pipeline
from sp500.data.columns import Hooks, build
from sp500.data.features import features
from sp500.data.prices import Prices
from sp500.data.sources import load
from sp500.errors import DataError

LONG = price_files.make_table()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return price_files.write(tmp_path_factory.mktemp("file") / "quant.csv")


def read(source: str, *names: str, **settings: Any) -> tuple[Prices, Any]:
    return pipeline.read(DataConfig(source=source, features=names, **settings))


def values_of(table: pd.DataFrame, name: str, ticker: str, dates: np.ndarray) -> np.ndarray:
    rows = table[table["ticker"] == ticker].set_index("date")[name]
    return rows.reindex(np.datetime_as_string(dates)).to_numpy()


def test_columns_of_a_long_file_are_features_next_to_built_in_ones(source):
    prices, table = read(source, "news", "log_return", "mood")
    assert table.names == ("news", "log_return", "mood")
    default = features(prices)
    for series, other in zip(table.series, default.series, strict=True):
        assert (series.x[:, 0] == values_of(LONG, "news", series.ticker, series.dates)).all()
        assert (series.x[:, 2] == values_of(LONG, "mood", series.ticker, series.dates)).all()
        both = np.isin(series.dates, other.dates)
        assert (series.x[both, 1] == other.x[:, 0]).all()
        assert (series.y[both][:-1] == other.y[:-1]).all()


def test_columns_not_asked_for_are_named_in_one_line_and_change_nothing(source, tmp_path):
    prices = load(DataConfig(source=source))
    assert [fault.detail for fault in prices.faults] == [
        "news, mood, sector: not asked for with data.features; left out"
    ]
    plain = load(DataConfig(source=price_files.write(tmp_path / "plain.csv", LONG[["date", "ticker", "close"]])))
    assert prices.sha256 == plain.sha256


def test_hash_of_the_prices_counts_the_columns_that_are_used(source, tmp_path):
    other = price_files.write(tmp_path / "other.csv", LONG.assign(news=LONG["news"] * 2))
    assert read(source, "news")[0].sha256 != read(other, "news")[0].sha256
    assert read(source, "mood")[0].sha256 == read(other, "mood")[0].sha256


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("newz",), "no column is named newz; did you mean news"),
        (("sector",), "sector with letters is not a number"),
        (("range",), "range needs open, high, low and volume"),
    ],
)
def test_column_that_cannot_be_a_feature_is_refused_by_name(source, names, message):
    with pytest.raises(DataError, match=message):
        read(source, *names)


def test_column_of_a_wide_file_is_a_ticker(tmp_path):
    wide = LONG.pivot(index="date", columns="ticker", values="close").reset_index()
    path = price_files.write(tmp_path / "wide.csv", wide)
    assert load(DataConfig(source=path)).tickers == ["AAA", "BBB"]
    with pytest.raises(DataError, match=r"AAA: in a wide file"):
        read(path, "AAA")


def test_column_of_prices_that_have_none_is_refused():
    with pytest.raises(DataError, match="no column news"):
        read("bundled", "news")


def test_column_named_twice_or_with_arrays_is_refused():
    with pytest.raises(ValueError, match="duplicate column news"):
        DataConfig(features=("news", "news"))
    with pytest.raises(ValueError, match=r"data\.npz_path replaces"):
        DataConfig(features=("news",), npz_path="x.npz")
    with pytest.raises(ValueError, match=r"data\.features is not used by task images"):
        RunConfig(task="images", data={"features": ("news",)})


@pytest.mark.parametrize(("length", "filled"), [(5, True), (6, False)])
def test_short_hole_takes_the_last_value_and_a_long_one_is_refused(tmp_path, length, filled):
    table = LONG.copy()
    table.loc[300 : 299 + length, "news"] = np.nan
    path, day = price_files.write(tmp_path / "holes.csv", table), table.loc[300, "date"]
    if not filled:
        hole = table.loc[305, "date"]
        with pytest.raises(DataError, match=f"column news of AAA .*{hole}"):
            read(path, "news")
        return
    prices, _ = read(path, "news")
    assert (prices["news"]["AAA"].iloc[300:305] == table.loc[299, "news"]).all()
    assert [(fault.rule, fault.date) for fault in prices.faults if "news on" in fault.detail] == [("missing", day)]


def test_fingerprint_counts_columns_only_where_they_are_chosen():
    plain = RunConfig().fingerprint
    assert RunConfig(data={"features": ()}).fingerprint == plain
    assert len({plain, *(RunConfig(data={"features": (name,)}).fingerprint for name in ("news", "gap"))}) == 3


def test_training_windows_have_an_index_as_the_others_have(source):
    dataset = pipeline.prepare(DataConfig(source=source, window=10), direction=False).dataset("float64")
    index = dataset.train.index
    assert index is not None
    assert len(index) == len(dataset.train)
    assert np.allclose(dataset.train.targets * dataset.target_scale, index["return"])


def tables(prices: Prices) -> dict[str, pd.DataFrame]:
    return {"move": np.log(prices.close).diff(), "news": prices["news"]}


def test_features_may_be_rows_of_date_and_ticker_or_tables_by_name(source):
    prices = load(DataConfig(source=source), columns=None)
    by_name = build(prices, 1, Hooks(features=tables))
    rows = build(prices, 1, Hooks(features=lambda prices: pd.concat(tables(prices), axis=1).stack(future_stack=True)))
    assert by_name.names == rows.names == ("move", "news")
    for one, other in zip(by_name.series, rows.series, strict=True):
        assert (one.x == other.x).all()


@pytest.mark.parametrize(
    ("computed", "message"),
    [
        (lambda prices: 3, "returned int; expected a DataFrame"),
        (lambda prices: prices.close, "rows with 1 levels; expected"),
        (lambda prices: {"x": [1, 2]}, "column x is list"),
        (lambda prices: {"x": prices.close.astype(str)}, "column x of AAA is str; expected numbers"),
        (lambda prices: {"x": prices.close.rename(columns=str.lower)}, "column x has no date or no ticker"),
        (lambda prices: {"x": prices.close * np.nan}, "column x is never known for AAA"),
        (lambda prices: {"x": prices["newz"]}, "has no column newz; it has"),
        (lambda prices: {"x": 1 / (prices.close > prices.close.shift())}, "column x of AAA has no finite number on"),
    ],
    ids=["number", "plain rows", "list", "texts", "other tickers", "nothing", "unknown column", "infinite"],
)
def test_features_of_another_shape_are_refused(source, computed, message):
    with pytest.raises(DataError, match=message):
        build(load(DataConfig(source=source), columns=None), 1, Hooks(features=computed))
