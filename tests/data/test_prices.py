"""Prices: bundled ones load without a fault, are cut as asked, cannot be changed, and have a hash."""

import hashlib
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from sp500.config import DataConfig
from sp500.data.prices import Prices
from sp500.data.sources import load
from sp500.errors import DataError

Csv = Callable[..., str]


def test_bundled_index_is_33_years_without_a_fault(bundled):
    close = bundled.close["^GSPC"]
    assert bundled.tickers == ["^GSPC"]
    assert bundled.faults == ()
    assert (len(close), close.loc["1990-01-02"], close.loc["2022-12-28"]) == (8313, 359.69, 3783.22)
    text = close.to_csv(header=False).encode()
    assert hashlib.sha256(text).hexdigest() == "0067b00ed78f9cb7dbe26e60131cf412513edda062adef43a6aa746129f698ea"


def test_bundled_stocks_are_twenty_from_1996_without_a_false_alarm(bundled_stocks):
    close = bundled_stocks.close
    assert bundled_stocks.faults == ()
    assert (close.shape, close["AAPL"].iloc[0], close["XOM"].iloc[-1]) == ((6796, 20), 0.244, 106.627)
    text = close.to_csv(index_label="Date").encode()
    assert hashlib.sha256(text).hexdigest() == "8a797372c273dcea015789907552853d0bdf3c64ccfb56050957fb008b6597fb"


def test_bundled_stocks_say_that_they_are_survivors(bundled, bundled_stocks):
    assert any("survivor" in note for note in bundled_stocks.notes)
    assert not any("dividends, about" in note for note in bundled_stocks.notes)
    (note,) = bundled.notes
    assert "leave out dividends" in note


@pytest.mark.parametrize("which", ["index", "stocks"])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_clean_file_of_all_bundled_prices_loads_without_a_fault(
    bundled, bundled_stocks, tmp_path, csv, which, layout, kind
):
    close = (bundled if which == "index" else bundled_stocks).close
    table = close.rename_axis("date").reset_index()
    if layout == "long":
        table = table.melt("date", var_name="ticker", value_name="close")
    source = str(tmp_path / "prices.parquet")
    if kind == "csv":
        source = csv(table)
    else:
        table.to_parquet(source)
    prices = load(DataConfig(source=source))
    assert prices.faults == ()
    pd.testing.assert_frame_equal(prices.close, close, check_freq=False, check_names=False, check_exact=True)


def test_start_and_end_are_both_included():
    prices = load(DataConfig(start="2015-03-02", end="2015-03-31"))
    assert (str(prices.close.index[0])[:10], str(prices.close.index[-1])[:10]) == ("2015-03-02", "2015-03-31")
    assert load(DataConfig(tickers=("KO",), start="1992-01-01")).close.index[0] == pd.Timestamp("1992-01-02")


@pytest.mark.parametrize("name", ["aapl", " AAPL "])
def test_ticker_in_another_case_or_with_blanks_is_found(name):
    assert load(DataConfig(tickers=(name, "AAPL", "ko"))).tickers == ["AAPL", "KO"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"start": "2023-06-01"}, "1990-01-02 to 2022-12-28"),
        ({"tickers": ("APPL",)}, "no APPL; .*; did you mean AAPL"),
        ({"tickers": ("AAPL,KO",)}, "no AAPL,KO; .*blanks"),
        ({"tickers": ("AAPL", "TSLA")}, "no TSLA; .*AAPL"),
    ],
    ids=str,
)
def test_prices_that_are_not_there_are_refused_with_those_there_are(asked, message):
    with pytest.raises(DataError, match=message):
        load(DataConfig(**asked))


def test_stocks_stands_for_all_but_the_index_and_each_once():
    prices = load(DataConfig(tickers=("KO", "stocks", "KO")))
    assert prices.tickers[0] == "KO"
    assert sorted(prices.tickers) == sorted(load(DataConfig(tickers=("stocks",))).tickers)
    assert len(prices.tickers) == 20


def test_hash_is_the_same_from_every_layout_of_the_same_prices(bundled_stocks, tmp_path, csv):
    bundled_stocks.close.reset_index(names="date").to_parquet(tmp_path / "prices.parquet")
    for source in (csv(bundled_stocks.close), str(tmp_path / "prices.parquet")):
        assert load(DataConfig(source=source)).sha256 == bundled_stocks.sha256


@pytest.mark.parametrize(
    "change",
    [
        lambda close: close * np.where(np.arange(len(close)) == 100, 1 + 1e-15, 1.0)[:, None],
        lambda close: close.rename(columns={"KO": "PEP"}),
        lambda close: close.iloc[1:],
        lambda close: close.set_axis(close.index + pd.Timedelta(days=7)),
        lambda close: close[["KO", "AAPL"]],
    ],
    ids=["a last bit", "a name", "a day", "all days", "the order"],
)
def test_hash_changes_with_every_part_of_the_prices(clean, change):
    assert Prices({"close": change(clean)}, "test").sha256 != Prices({"close": clean}, "test").sha256


def test_prices_change_neither_by_hand_nor_with_the_table_they_came_from(clean):
    prices = Prices({"close": clean}, "test")
    before = prices.sha256
    with pytest.raises(ValueError, match="read-only"):
        prices.close.iloc[0, 0] = 1.0
    clean.iloc[0, 0] = 1.0
    assert prices.sha256 == before
