"""Price files of every layout end in the same table."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sp500.config import DataConfig
from sp500.data.sources import load
from sp500.errors import DataError

Csv = Callable[..., str]


def long_of(wide: pd.DataFrame) -> pd.DataFrame:
    return wide.rename_axis("date").reset_index().melt("date", var_name="ticker", value_name="close")


def assert_same(source: str, expected: pd.DataFrame) -> None:
    prices = load(DataConfig(source=source))
    assert prices.faults == ()
    pd.testing.assert_frame_equal(prices.close, expected, check_freq=False, check_names=False, check_exact=True)


def wide_of(table: pd.DataFrame) -> pd.DataFrame:
    return table.reset_index(names="date")


AS_CSV: dict[str, Callable[[Csv, pd.DataFrame], str]] = {
    "wide": lambda csv, clean: csv(clean),
    "long": lambda csv, clean: csv(long_of(clean)),
    "heading symbol": lambda csv, clean: csv(long_of(clean).rename(columns={"ticker": "Symbol", "close": "Close"})),
    "headings in upper case": lambda csv, clean: csv(long_of(clean).rename(columns=str.upper)),
    "headings as titles": lambda csv, clean: csv(long_of(clean).rename(columns=str.title)),
    "headings with blanks": lambda csv, clean: csv(long_of(clean).rename(columns=lambda name: f" {name} ")),
    "byte order mark": lambda csv, clean: csv(clean, encoding="utf-8-sig"),
    "crlf": lambda csv, clean: csv(clean, lineterminator="\r\n"),
    "cr": lambda csv, clean: csv(clean, lineterminator="\r"),
    "semicolons": lambda csv, clean: csv(clean, sep=";"),
    "tabs": lambda csv, clean: csv(clean, sep="\t"),
}
DATES = ["%Y-%m-%d", "%Y%m%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y-%m-%d %H:%M:%S"]


@pytest.mark.parametrize("write", AS_CSV.values(), ids=AS_CSV)
def test_csv_of_any_layout_is_read_as_it_is(csv, clean, write):
    assert_same(write(csv, clean), clean)


@pytest.mark.parametrize("written", DATES)
def test_usual_ways_to_write_a_date_are_read(csv, clean, written):
    assert_same(csv(clean, date_format=written), clean)


AS_PARQUET = {
    "wide": wide_of,
    "long": long_of,
    "dates as index": lambda table: table.rename_axis("Date"),
    "dates as index without a name": lambda table: table.rename_axis(None),
}


@pytest.mark.parametrize("layout", AS_PARQUET.values(), ids=AS_PARQUET)
def test_parquet_is_read_as_it_is(layout, tmp_path, clean):
    layout(clean).to_parquet(tmp_path / "prices.parquet")
    assert_same(str(tmp_path / "prices.parquet"), clean)


@pytest.mark.parametrize("index", [False, True], ids=["dates as column", "dates as index"])
def test_parquet_of_arrow_types_with_a_missing_value_is_read_as_csv_is(tmp_path, csv, ohlcv, index):
    ohlcv.loc[5, "low"] = np.nan
    expected = load(DataConfig(source=csv(ohlcv)))
    arrow = ohlcv.convert_dtypes(dtype_backend="pyarrow")
    (arrow.set_index("date") if index else arrow).to_parquet(tmp_path / "prices.parquet")
    prices = load(DataConfig(source=str(tmp_path / "prices.parquet")))
    assert (prices.sha256, prices.faults) == (expected.sha256, expected.faults)


@pytest.mark.parametrize(
    ("written", "zone", "named"),
    [
        *((written, None, "is not a date") for written in ("%b %d %Y", "%d-%b-%Y", "%B %d, %Y")),
        *((written, "America/New_York", "prices.csv") for written in (
            *("%Y/%m/%d %H:%M:%S%z", "%m/%d/%Y %H:%M:%S-05:00", "%m/%d/%Y 16:00 EST"),
            *("%d %b %Y 16:00:00Z", "%Y%m%dT%H%M%S%z"),
        )),
    ],
)  # fmt: skip
def test_unusual_dates_are_read_right_or_refused(csv, clean, written, zone, named):
    source = csv(clean.tz_localize(zone), date_format=written)
    refused, read = "", []
    try:
        read = list(load(DataConfig(source=source)).close.index)
    except DataError as error:
        refused = str(error)
    assert read == list(clean.index) or named in refused


# Columns without a name: row numbers of pandas, and what follows the last comma.


def numbered(table: pd.DataFrame, heading: str, first: int = 700, step: int = 1) -> pd.DataFrame:
    """The table with its row numbers in front, as `to_csv()` and `reset_index()` leave them."""
    table = table.copy()
    table.insert(0, heading, first + step * np.arange(len(table)))
    return table


@pytest.mark.parametrize("layout", [wide_of, long_of], ids=["wide", "long"])
@pytest.mark.parametrize("heading", ["", "Unnamed: 0", "Unnamed: 0.1", "index", "level_0", "__index_level_0__"])
@pytest.mark.parametrize(("first", "step"), [(0, 1), (700, 1), (9000, -1)])
def test_row_numbers_are_left_out_by_name(csv, clean, layout, heading, first, step):
    prices = load(DataConfig(source=csv(numbered(layout(clean), heading, first, step))))
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False, check_exact=True)
    assert [(fault.rule, fault.date) for fault in prices.faults] == [("nameless", "column 1")]


def test_row_numbers_that_begin_again_are_left_out(csv, clean):
    rows = long_of(clean)
    rows.insert(0, "", np.arange(len(rows)) % len(clean))
    assert load(DataConfig(source=csv(rows))).tickers == ["AAPL", "KO"]


@pytest.mark.parametrize("layout", [wide_of, long_of], ids=["wide", "long"])
def test_commas_at_line_ends_are_no_columns(csv, clean, layout):
    source = Path(csv(layout(clean)))
    source.write_text("".join(f"{line},,\n" for line in source.read_text().splitlines()))
    prices = load(DataConfig(source=str(source)))
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False, check_exact=True)
    assert [fault.date[:7] for fault in prices.faults] == ["column "] * 2


def test_row_numbers_of_a_parquet_file_without_pandas_own_notes_are_left_out(tmp_path, clean):
    rows = wide_of(clean)
    rows.index = pd.Index([*range(5, len(rows) + 5)])
    table = pa.Table.from_pandas(rows, preserve_index=True).replace_schema_metadata(None)
    assert "__index_level_0__" in table.column_names
    pq.write_table(table, tmp_path / "prices.parquet")
    assert load(DataConfig(source=str(tmp_path / "prices.parquet"))).tickers == ["AAPL", "KO"]


@pytest.mark.parametrize("heading", ["", "Unnamed: 1"])
def test_prices_without_a_name_are_refused_by_the_number_of_the_column(csv, clean, heading):
    with pytest.raises(DataError, match="column 2 "):
        load(DataConfig(source=csv(wide_of(clean).set_axis(["date", heading, "KO"], axis=1))))


def test_ticker_that_is_called_index_is_one_where_it_holds_prices(csv, clean):
    whole = clean.assign(index=(clean["KO"] * 10).round())
    assert load(DataConfig(source=csv(whole))).tickers == ["AAPL", "KO", "index"]


def test_file_without_tickers_is_named_after_itself(csv, clean):
    rows = clean[["KO"]].rename(columns={"KO": "close"})
    assert load(DataConfig(source=csv(rows, "ko.csv"))).tickers == ["KO"]


def test_fields_of_a_long_file_are_all_kept(csv, ohlcv):
    prices = load(DataConfig(source=csv(ohlcv)))
    assert set(prices.fields) == {"open", "high", "low", "close", "volume"}
    for name, table in prices.fields.items():
        np.testing.assert_array_equal(table["KO"], ohlcv[name])


@pytest.mark.parametrize("ticker", ["LOW", "OPEN", "NA", "TRUE", "0700"])
@pytest.mark.parametrize("layout", ["wide", "long", "LONG"])
def test_ticker_that_looks_like_something_else_keeps_its_name(csv, clean, ticker, layout):
    table = clean.rename(columns={"KO": ticker})
    rows = table if layout == "wide" else long_of(table)
    source = csv(rows.rename(columns=str.upper) if layout == "LONG" else rows)
    assert load(DataConfig(source=source, tickers=(ticker,))).tickers == [ticker]


@pytest.mark.parametrize("heading", ["ticker", "TICKER"])
def test_numbered_tickers_of_a_csv_file_are_names(csv, clean, heading):
    rows = long_of(clean.set_axis(["0005", "0700"], axis=1)).rename(columns={"ticker": heading})
    assert load(DataConfig(source=csv(rows))).tickers == ["0005", "0700"]


def test_numbered_tickers_of_a_parquet_file_are_names(tmp_path, clean):
    long_of(clean.set_axis([5, 700], axis=1)).astype({"ticker": int}).to_parquet(tmp_path / "prices.parquet")
    assert load(DataConfig(source=str(tmp_path / "prices.parquet"))).tickers == ["5", "700"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\n\n", "empty"),
        (b"date,ticker,close\n", "empty"),
        (b"day,price\n2020-01-02,5\n", "date, only day, price"),
        (b"Date,Open,High,Low,Last\n2020-01-02,5,6,4,5\n", "close, only date, Open, High, Low, Last"),
        (b"date;KO\n2020-01-02;5,25\n2020-01-03;5,5\n", "'5,25' is not a number"),
        (b"date,ticker,price\n2020-01-02,KO,5\n", "date, ticker, price"),
        (b"date,close,Close\n2020-01-02,5,5\n", "close"),
        (b"date,KO,KO\n2020-01-02,5,6\n2020-01-03,5,6\n", "KO"),
        (b"date,KO\nyesterday,5\n", "row 2"),
        (b"date,KO\n2020-01-02,5\n,6\n", "row 3"),
        (b"date,KO\n2020-13-02,5\n", "row 2"),
        (b"date,KO\n1577923200,5\n", "row 2"),
        (b"date,ticker,close\n2020-01-02,KO,5\n2020-01-03,,6\n", "row 3: ticker"),
        (b"date,KO\n2020-01-02,5\n2020-01-03,five\n", "not_a_number: KO 2020-01-03"),
        (b"date,KO\n2020-01-02,5\n2020-01-03,6,7,8\n", "cannot be read"),
        ("date,KO\n2020-01-02,5\n".encode("utf-16"), "UTF-16"),
        (bytes(range(1, 256)), "not UTF-8"),
        (gzip.compress(b"date,KO\n2020-01-02,5\n", mtime=0), "gzip"),
        (b"PK\x03\x04 and the rest of a zip file", "zip file"),
        (b"Date,Ticker,Name\n2020-01-02,KO,Coke\n", "date, ticker, Name"),
        (b"date,IDX,Name\n2020-01-02,5,Coke\n2020-01-03,5,Coke\n", "date,ticker,close"),
        (b"date,KO\n13/01/2020,5\n01/14/2020,6\n", "row 2: date '13/01/2020'"),
        (b"date,KO\n02/01/2020,5\n03/01/2020,6\n", "day or month"),
    ],
)
def test_file_that_is_no_price_table_is_refused_by_name(tmp_path, content, named):
    path = tmp_path / "prices.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=str(path)))
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("S3CRET,close\nx,5\n", "only close, 1 column"),
        ("S3CRET,token\nx,5\n", "only 2 columns"),
        ("2020-01-02,5.25\n2020-01-03,5.5\n", "only 2020-01-02, 5.25"),  # no heading at all
        ("date,KO\nS3CRET,5\n2020-01-03,5\n", "row 2: "),
        ("date,token\n2020-01-02,S3CRET\n2020-01-03,5\n", "token 2020-01-02: close with letters"),
        ("date,KO\n2020-01-02,$5.25\n2020-01-03,5\n", "KO 2020-01-02: close '$5.25'"),
    ],
)
def test_refusal_repeats_no_words_of_a_file_that_may_hold_secrets(tmp_path, content, said):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=str(tmp_path / "a.csv")))
    assert said in str(caught.value)
    assert "S3CRET" not in str(caught.value)


def test_parquet_with_an_empty_date_is_refused_by_row(tmp_path, clean):
    rows = clean.reset_index(names="date")
    rows.loc[3, "date"] = pd.NaT
    rows.to_parquet(tmp_path / "prices.parquet")
    with pytest.raises(DataError, match="row 5"):
        load(DataConfig(source=str(tmp_path / "prices.parquet")))


def test_damaged_parquet_is_refused_by_name(tmp_path, clean):
    path = tmp_path / "prices.parquet"
    clean.reset_index(names="date").to_parquet(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=str(path)):
        load(DataConfig(source=str(path)))


@pytest.mark.parametrize(("name", "said"), [("none.csv", "no such file"), ("", "")])
def test_missing_file_and_a_folder_are_refused_by_name(tmp_path, name, said):
    with pytest.raises(DataError, match=f"{tmp_path / name}.*{said}"):
        load(DataConfig(source=str(tmp_path / name)))


@pytest.mark.parametrize("heading", ["Adj Close", "adj_close", "Adjusted Close", "AdjClose"])
def test_download_of_a_portal_is_read_by_its_adjusted_close(tmp_path, clean, heading):
    """One series without a ticker column, split 2 to 1 half-way, with dividends."""
    adjusted = clean.iloc[:, 0]
    factor = np.where(np.arange(len(adjusted)) < len(adjusted) // 2, 2.0, 1.0)
    close = adjusted * factor
    columns = {"Date": adjusted.index, "Open": close, "High": close * 1.01, "Low": close * 0.99, "Close": close}
    table = pd.DataFrame({**columns, heading: adjusted, "Volume": 1000, "Dividends": 0.0, "Stock Splits": 0.0})
    table.to_csv(tmp_path / "mine.csv", index=False)
    prices = load(DataConfig(source=str(tmp_path / "mine.csv")))
    assert list(prices.close.columns) == ["MINE"]
    np.testing.assert_array_equal(prices.close["MINE"], adjusted)
    np.testing.assert_allclose(prices.fields["high"]["MINE"], adjusted * 1.01)
    np.testing.assert_array_equal(prices.fields["open"]["MINE"], adjusted)
    assert [fault.rule for fault in prices.faults] == ["adjusted"]
