"""Price files as portals and libraries write them are read as they are, or refused by row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sp500.config import DataConfig
from sp500.data.sources import load
from sp500.errors import DataError

Csv = Callable[..., str]
Frame = Callable[[pd.DataFrame], pd.DataFrame]


def refused(source: str, **config: object) -> str:
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=source, **config))
    return str(caught.value)


def yahoo(close: pd.DataFrame) -> pd.DataFrame:
    """What `yfinance.download` gives: fields and tickers in the columns."""
    fields = {"Close": close, "High": close * 1.01, "Low": close * 0.99, "Open": close, "Volume": close * 0 + 1e6}
    return pd.concat(fields, axis=1, names=["Price", "Ticker"]).rename_axis("Date")


# Two rows of headings.

ANSWERS: dict[str, Frame] = {
    "by field": lambda frame: frame,
    "by ticker": lambda frame: frame.swaplevel(axis=1).sort_index(axis=1),
    "without names": lambda frame: frame.rename_axis(columns=[None, None]),
    "of pandas-datareader": lambda frame: frame.rename_axis(columns=["Attributes", "Symbols"]),
    "close alone": lambda frame: frame[["Close"]],
    "date as column": lambda frame: frame.reset_index(),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("tickers", [["AAPL"], ["AAPL", "KO"], ["LOW", "OPEN"]], ids="-".join)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_two_rows_of_headings_are_read_as_they_are(tmp_path, clean, answer, tickers, kind):
    close = clean.iloc[:, : len(tickers)].set_axis(tickers, axis=1)
    frame, path = answer(yahoo(close)), tmp_path / f"prices.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=isinstance(frame.index, pd.DatetimeIndex))
    else:
        frame.to_parquet(path)
    prices = load(DataConfig(source=str(path)))
    assert prices.faults == ()
    pd.testing.assert_frame_equal(prices.close, close, check_freq=False, check_names=False)
    assert "volume" in prices.fields or "Volume" not in frame.columns.get_level_values(0)


def test_ticker_that_is_listed_later_begins_later_below_two_rows_of_headings(tmp_path, clean):
    clean.iloc[:100, 1] = np.nan
    yahoo(clean).to_csv(tmp_path / "prices.csv")
    prices = load(DataConfig(source=str(tmp_path / "prices.csv")))
    assert prices.faults == ()
    assert prices.close["KO"].first_valid_index() == clean.index[100]


def test_rows_below_two_rows_of_headings_are_counted_from_the_first(tmp_path):
    lines = ["Price,Close,Close", "Ticker,KO,AAPL", "Date,,", "2020-01-02,5,6", "soon,5,6"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert "row 5: " in refused(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("second", [",5", ",NA", "yesterday,five"])
def test_damaged_first_row_is_no_row_of_headings(tmp_path, second):
    (tmp_path / "a.csv").write_text(f"date,close\n{second}\n2020-01-02,5\n2020-01-03,6\n")
    assert "row 2: " in refused(str(tmp_path / "a.csv"))


def test_parquet_file_with_columns_of_other_pairs_is_refused(tmp_path, clean):
    pd.concat({"left": clean, "right": clean}, axis=1).to_parquet(tmp_path / "prices.parquet")
    assert "2 rows of headings" in refused(str(tmp_path / "prices.parquet"))


@pytest.mark.parametrize("names", [["Date", "Ticker"], ["date", "symbol"], [None, None], ["Date", None]], ids=str)
@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["date first", "ticker first"])
def test_parquet_file_with_dates_and_tickers_as_index_is_read(tmp_path, clean, names, order):
    rows = clean.stack().rename_axis(names).rename("Close").to_frame()
    rows.reorder_levels(order).to_parquet(tmp_path / "prices.parquet")
    prices = load(DataConfig(source=str(tmp_path / "prices.parquet")))
    assert prices.faults == ()
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)


# Numbers.


def test_download_of_investing_com_is_read(tmp_path, clean):
    close = (clean["KO"] * 50).round(2)  # about 2,000
    rows = {"Date": close.index.strftime("%m/%d/%Y")}
    rows |= {name: close.map("{:,.2f}".format) for name in ("Price", "Open", "High", "Low")}
    table = pd.DataFrame(rows | {"Vol.": "43.65M", "Change %": "0.52%"})
    table.loc[table.index[5:7], "Vol."] = ["950.25K", "1.20B"]
    table.iloc[::-1].to_csv(tmp_path / "KO.csv", index=False, encoding="utf-8-sig", quoting=1)
    prices = load(DataConfig(source=str(tmp_path / "KO.csv")))
    np.testing.assert_array_equal(prices.close["KO"], close)
    np.testing.assert_array_equal(prices.fields["volume"]["KO"][4:8], [43.65e6, 950.25e3, 1.2e9, 43.65e6])
    assert [fault.rule for fault in prices.faults] == ["unsorted"]


def test_download_of_nasdaq_com_is_read(tmp_path, clean):
    close = clean["KO"].round(2)
    table = pd.DataFrame({"Date": close.index.strftime("%m/%d/%Y"), "Close/Last": close.map("${:.2f}".format)})
    table["Volume"] = "30,654,200"
    table.to_csv(tmp_path / "KO.csv", index=False)
    prices = load(DataConfig(source=str(tmp_path / "KO.csv")))
    np.testing.assert_array_equal(prices.close["KO"], close)
    assert set(prices.fields["volume"]["KO"]) == {30_654_200}


@pytest.mark.parametrize("written", ["{:,.2f}", "${:,.2f}", "$ {:.2f}", "{:.2f} €", "£{:.2f}", "¥{:,.2f}"])
def test_signs_that_a_whole_column_has_are_read(tmp_path, clean, written):
    close = (clean * 20).round(2)
    close.map(written.format).rename_axis("date").to_csv(tmp_path / "a.csv")
    prices = load(DataConfig(source=str(tmp_path / "a.csv")))
    pd.testing.assert_frame_equal(prices.close, close, check_freq=False, check_names=False)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1,234", "1,250"], "'1,234' is not a number; use a decimal point and no separator of thousands"),
        (["1.234,50", "1.250,00"], "'1.234,50' is not a number"),
        (["1,234.5", "12,50"], "'1,234.5' is not a number"),
        (["$5.25", "5.5"], "'$5.25' is not a number"),
        (["$5.25", "€5.5"], "without $"),
        (["5.2%", "5.5%"], "without %"),
        (["43.6M", "43.7M"], "without M"),
        (["(5.25)", "5.5"], "without ("),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_price_that_may_mean_two_numbers_is_refused_with_the_sign(tmp_path, values, said):
    (tmp_path / "a.csv").write_text(f'date;KO\n2020-01-02;"{values[0]}"\n2020-01-03;"{values[1]}"\n')
    assert said in refused(str(tmp_path / "a.csv"))


def test_dash_is_a_missing_value(csv, clean):
    rows = clean.astype(object)
    rows.iloc[100, 1] = "-"
    prices = load(DataConfig(source=csv(rows)))
    (fault,) = prices.faults
    assert (fault.rule, fault.ticker, fault.date) == ("missing", "KO", f"{clean.index[100]:%Y-%m-%d}")


# Damage.


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        (lambda text: text + "\0" * 4096, 500),
        (lambda text: text.replace("KO", "KO\0"), 1),
        (lambda text: text.replace("2018-03-01,", "2018-03-01\0,"), None),
        (lambda text: text.replace("2018-03-01,", '2018-03-01,"').replace("2018-06-01,", '2018-06-01,"'), None),
        (lambda text: text.replace("2018-03-01,", '2018-03-01,"'), None),
    ],
    ids=["zeros at the end", "zero in a ticker", "zero in a date", "two quotes", "one quote"],
)
def test_damaged_row_is_refused_by_number_in_one_short_line(csv, clean, damage, row):
    path = Path(csv(clean.iloc[:498]))
    text = path.read_text()
    path.write_text(damage(text))
    row = row or next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("2018-03-01"))
    said = refused(str(path)).removeprefix(f"{path}: ")
    assert said.startswith(f"row {row}: has a ")
    assert len(said) < 100
    assert said.isprintable()


@pytest.mark.parametrize("hidden", ["\u200b", "\x07", "\xad"])
@pytest.mark.parametrize("layout", ["wide", "long"])
def test_tickers_that_print_alike_are_refused(csv, clean, hidden, layout):
    table = clean.set_axis(["KO", f"KO{hidden}"], axis=1)
    rows = table if layout == "wide" else table.rename_axis("date").reset_index().melt("date", var_name="ticker")
    said = refused(csv(rows.rename(columns={"value": "close"})))
    assert "cannot be seen" in said
    assert said.isprintable()


# Years of two digits.


@pytest.mark.parametrize("written", ["%m/%d/%y", "%d.%m.%y", "%d-%b-%y", "%y/%m/%d"])
@pytest.mark.parametrize("first", ["2018-06-01", "1955-06-01", "1968-06-03"])
def test_years_of_two_digits_are_read_or_refused_in_one_line(csv, clean, written, first):
    days = pd.bdate_range(first, periods=200)
    source = csv(clean.iloc[:200].set_axis(days), date_format=written)
    said, read = "", []
    try:
        read = list(load(DataConfig(source=source), now=datetime(2026, 11, 26, tzinfo=UTC)).close.index)
    except DataError as error:
        said = str(error)
    assert "write YYYY-MM-DD" in said if first < "2018" or written == "%y/%m/%d" else set(read) <= set(days) and read
    assert "\n" not in said
