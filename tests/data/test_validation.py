"""Bad prices: each fault is named by rule, ticker and date, then repaired by the stated rule or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from sp500.config import DataConfig
from sp500.data.features import features, names
from sp500.data.sources import load
from sp500.data.validation import summarize, validate
from sp500.errors import DataError

Csv = Callable[..., str]
Damage = Callable[[pd.DataFrame], pd.DataFrame]


def long_of(wide: pd.DataFrame) -> pd.DataFrame:
    return wide.rename_axis("date").reset_index().melt("date", var_name="ticker", value_name="close")


def day(table: pd.DataFrame, row: int) -> str:
    return f"{table['date'][row] if 'date' in table else table.index[row]:%Y-%m-%d}"


def scaled(first: int, last: int | None, factor: float) -> Damage:
    """KO's prices of rows first to last, multiplied."""
    return lambda table: table.assign(KO=table["KO"].where(~rows_of(table, first, last), table["KO"] * factor))


def put(first: int, value: float, last: int | None = None) -> Damage:
    """KO's price of a row, or of rows first to last, replaced."""
    last = first + 1 if last is None else last
    return lambda table: table.assign(KO=table["KO"].mask(rows_of(table, first, last), value))


def rows_of(table: pd.DataFrame, first: int, last: int | None) -> np.ndarray:
    return np.isin(np.arange(len(table)), np.arange(len(table))[first:last])


def blank(first: int, last: int) -> Damage:
    return put(first, np.nan, last)


def still(first: int, last: int | None) -> Damage:
    """KO's price stands still from row first to last."""
    return lambda table: put(first, table["KO"].iloc[first], len(table) if last is None else last)(table)


# Repaired: the faults' names, and the clean prices with the stated rule applied to them.


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("form", ["blank", "absent"])
def test_short_run_without_prices_carries_the_last_one_forward(csv, clean, length, form):
    expected = clean.copy()
    expected.iloc[100 : 100 + length, 1] = expected.iloc[99, 1]
    rows = long_of(blank(100, 100 + length)(clean))
    prices = load(DataConfig(source=csv(rows if form == "blank" else rows.dropna())))
    assert [(fault.rule, fault.ticker, fault.date) for fault in prices.faults] == [("missing", "KO", day(clean, 100))]
    pd.testing.assert_frame_equal(prices.close, expected, check_freq=False, check_names=False)


def test_session_missing_for_all_tickers_is_carried_forward_for_each(csv, clean):
    expected = clean.copy()
    expected.iloc[100] = expected.iloc[99]
    prices = load(DataConfig(source=csv(clean.drop(clean.index[100]))))
    assert {(fault.rule, fault.ticker, fault.date) for fault in prices.faults} == {
        ("missing", "AAPL", day(clean, 100)),
        ("missing", "KO", day(clean, 100)),
    }
    pd.testing.assert_frame_equal(prices.close, expected, check_freq=False, check_names=False)


def repeated(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table.iloc[:51], table.iloc[50:]])


def swapped(table: pd.DataFrame) -> pd.DataFrame:
    order = np.arange(len(table))
    order[[50, 51]] = 51, 50
    return table.iloc[order]


def with_a_saturday(table: pd.DataFrame) -> pd.DataFrame:
    saturday = pd.Timestamp("2018-03-03")
    return pd.concat([table, pd.DataFrame(7.0, [saturday], table.columns)]).sort_index()


def in_new_york(table: pd.DataFrame) -> pd.DataFrame:
    return table.tz_localize("America/New_York")


@pytest.mark.parametrize(
    ("damage", "rule", "tickers", "row"),
    [
        (repeated, "duplicate", {"AAPL", "KO"}, "2017-08-11"),
        (swapped, "unsorted", {"AAPL", "KO"}, "2017-08-11"),
        (with_a_saturday, "non_session", {"*"}, "2018-03-03"),
        (in_new_york, "timezone", {"*"}, "2017-06-01"),
        (lambda table: table.tz_localize("UTC"), "timezone", {"*"}, "2017-06-01"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_repaired_file_equals_the_clean_one_and_names_the_fault(csv, tmp_path, clean, damage, rule, tickers, row, kind):
    if kind == "csv":
        source = csv(damage(clean))
    else:
        source = str(tmp_path / "prices.parquet")
        damage(clean).reset_index(names="date").to_parquet(source)
    prices = load(DataConfig(source=source))
    assert {fault.rule for fault in prices.faults} == {rule}
    assert {fault.ticker for fault in prices.faults} == tickers
    assert {fault.date for fault in prices.faults} == {row}
    assert all(fault.repaired for fault in prices.faults)
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False, check_exact=True)


# Refused: what the message names.

REFUSED: dict[str, tuple[Damage, str, int]] = {
    "long gap": (blank(100, 106), "missing", 100),
    "long run of NaN": (blank(100, 160), "missing", 100),
    "zero": (put(100, 0.0), "not_positive", 100),
    "negative": (put(100, -41.5), "not_positive", 100),
    "infinite": (put(100, np.inf), "not_a_number", 100),
    "10x for a day": (scaled(100, 101, 10), "jump", 100),
    "a tenth for a day": (scaled(100, 101, 0.1), "jump", 100),
    "10x for a week": (scaled(100, 105, 10), "jump", 100),
    "100x for a day": (scaled(100, 101, 100), "jump", 100),
    "10x from then on": (scaled(100, None, 10), "split", 100),
    "40x from then on": (scaled(100, None, 40), "jump", 100),
    "2:1 split": (scaled(0, 100, 2), "split", 100),
    "3:1 split": (scaled(0, 100, 3), "split", 100),
    "10:1 split": (scaled(0, 100, 10), "split", 100),
    "20:1 split": (scaled(0, 100, 20), "split", 100),
    "1:10 reverse split": (scaled(0, 100, 0.1), "split", 100),
    "2:1 split yesterday": (scaled(0, -1, 2), "split", -1),
    "10x on the last day": (scaled(-1, None, 10), "split", -1),
}


@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize(("damage", "rule", "row"), REFUSED.values(), ids=REFUSED)
def test_bad_price_is_refused_by_rule_ticker_and_date(csv, clean, damage, rule, row, layout):
    damaged = damage(clean)
    source = csv(damaged if layout == "wide" else long_of(damaged))
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=source))
    assert f"{rule}: KO {day(clean, row)}" in str(caught.value)
    assert "1 fault" in str(caught.value)
    assert "AAPL" not in str(caught.value)


def with_another_price(table: pd.DataFrame) -> pd.DataFrame:
    rows = long_of(table)
    return pd.concat([rows, rows[(rows["ticker"] == "KO") & (rows["date"] == "2018-03-01")].assign(close=99.0)])


def with_lower_case(table: pd.DataFrame) -> pd.DataFrame:
    rows = long_of(table)
    rows.loc[rows.index % 2 == 0, "ticker"] = rows["ticker"].str.lower()
    return rows


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_another_price, "duplicate: KO 2018-03-01"),
        (with_lower_case, "duplicate: AAPL .*aapl .*case"),
        (lambda table: table.resample("D").ffill(), "calendar: .*2017-06-03"),
        (lambda table: table.assign(KO=np.nan), "missing: KO"),
    ],
    ids=["rows that differ", "tickers that differ in case", "every day", "a ticker without a price"],
)
def test_table_that_cannot_be_right_is_refused_by_rule(csv, clean, damage, message):
    with pytest.raises(DataError, match=message):
        load(DataConfig(source=csv(damage(clean))))


@pytest.mark.parametrize(
    "zones",
    [
        (" 00:00:00+00:00", " 00:00:00-05:00"),
        ("T00:00:00Z", ""),
        (" 00:00-05:00", " 00:00+01:00"),
        (" 16:00 EST", " 21:00 UTC"),
    ],
    ids=["offsets", "with and without", "no seconds", "names"],
)
def test_mixed_time_zones_are_refused_with_the_first_odd_date(csv, clean, zones):
    dates = [f"{time:%Y-%m-%d}{zones[1] if row == 10 else zones[0]}" for row, time in enumerate(clean.index)]
    with pytest.raises(DataError, match=f"timezone: .*{day(clean, 10)}"):
        load(DataConfig(source=csv(clean.reset_index(drop=True).assign(date=dates))))


def test_new_yorks_winter_and_summer_offsets_are_one_zone(csv, clean):
    prices = load(DataConfig(source=csv(in_new_york(clean))))
    assert len({f"{time:%z}" for time in in_new_york(clean).index}) == 2
    assert [fault.rule for fault in prices.faults] == ["timezone"]


FIELDS = ("open", "high", "low", "volume")
BAD_FIELDS = [
    *(("high_low", field, 100, by) for field, by in {"high": 0.9, "low": 1.1, "close": 1.2, "open": 0.8}.items()),
    *(("not_positive", field, 100, -1) for field in FIELDS),
    *(("missing", field, 109, np.nan) for field in FIELDS),
    ("missing", "volume", 109, 0),
]


@pytest.mark.parametrize(("rule", "field", "last", "factor"), BAD_FIELDS, ids=str)
def test_bad_field_is_refused_by_rule_ticker_and_date(csv, ohlcv, rule, field, last, factor):
    ohlcv.loc[100:last, field] *= factor
    with pytest.raises(DataError, match=f"{rule}: KO {day(ohlcv, 100)}.*{'' if rule == 'high_low' else field}"):
        load(DataConfig(source=csv(ohlcv)))


FILLED = [
    *((field, [100], 0.0) for field in FIELDS),
    *((field, [100, 101], np.nan) for field in FIELDS),
    ("volume", [100, 101, 200], 0.0),
    ("volume", [-1], 0.0),
]


@pytest.mark.parametrize(("field", "rows", "value"), FILLED, ids=str)
def test_few_zeros_or_holes_in_a_field_take_the_last_value_by_name(csv, ohlcv, field, rows, value):
    places = ohlcv.index[rows]
    expected = ohlcv[field].mask(ohlcv.index.isin(places)).ffill()
    first_of_runs = [day(ohlcv, row) for row in places if row - 1 not in places]
    ohlcv.loc[places, field] = value
    prices = load(DataConfig(source=csv(ohlcv)))
    np.testing.assert_array_equal(prices.fields[field]["KO"], expected)
    np.testing.assert_array_equal(prices.close["KO"], ohlcv["close"])
    assert [(fault.rule, fault.date) for fault in prices.faults] == [("missing", first) for first in first_of_runs]
    assert f"without {field}" in str(prices.faults[0])


def test_zero_open_of_all_early_rows_is_one_fault_with_both_ends(csv, ohlcv):
    ohlcv.loc[:299, "open"] = 0.0
    first, last, next_day = (day(ohlcv, row) for row in (0, 299, 300))
    source = csv(ohlcv)
    with pytest.raises(DataError, match=f"1 fault .*\n.*missing: KO {first}: 300 sessions to {last} without open"):
        load(DataConfig(source=source))
    assert load(DataConfig(source=source, start=next_day)).faults == ()  # as the message says


@pytest.mark.parametrize(("factor", "said"), [(0.01, "one unit"), (1000, "one unit"), (40, "correct")])
@pytest.mark.parametrize("last", [101, None], ids=["for a day", "from then on"])
def test_move_by_the_factor_of_a_coin_says_so(csv, clean, factor, said, last):
    with pytest.raises(DataError, match=f"jump: KO {day(clean, 100)}: .*{said}"):
        load(DataConfig(source=csv(scaled(100, last, factor)(clean))))


def test_years_without_prices_are_refused_with_the_ways_out(csv, clean):
    """One ticker of two companies: the second part as a ticker of its own, or one part alone, is read."""
    damaged = scaled(300, None, 0.31)(blank(100, 300)(clean))
    source = csv(damaged)
    with pytest.raises(DataError, match=f"missing: KO {day(clean, 100)}: 200 sessions to {day(clean, 299)} .*ticker"):
        load(DataConfig(source=source))
    assert load(DataConfig(source=source, end=day(clean, 99))).faults == ()
    assert load(DataConfig(source=source, start=day(clean, 300))).faults == ()
    two = damaged.assign(KO=damaged["KO"][:100], NEW=damaged["KO"][300:])
    assert load(DataConfig(source=csv(two))).faults == ()


def test_dates_after_today_are_refused_by_date(csv, clean):
    source = csv(clean)
    with pytest.raises(DataError, match=r"future: .* 2019-06-27") as caught:
        load(DataConfig(source=source), now=datetime(2019, 6, 26, 21, tzinfo=UTC))
    assert "2019-06-28" in str(caught.value)
    assert "2019-06-26:" not in str(caught.value)
    assert load(DataConfig(source=source), now=datetime(2019, 6, 28, 20, tzinfo=UTC)).faults == ()


@pytest.mark.parametrize(
    ("last", "seen", "dropped"),
    [
        ("2018-06-15", "2018-06-15 19:59", True),  # 16:00 in New York is 20:00 in summer, UTC
        ("2018-06-15", "2018-06-15 20:00", False),
        ("2018-01-10", "2018-01-10 20:59", True),  # and 21:00 in winter
        ("2018-01-10", "2018-01-10 21:00", False),
        ("2018-07-03", "2018-07-03 16:59", True),  # the eve of Independence Day ends at 13:00
        ("2018-07-03", "2018-07-03 17:00", False),
        ("2018-06-15", "2018-06-15 00:30", True),  # in New York still the evening before
        ("2018-06-15", "2018-06-16 12:00", False),
    ],
)
def test_row_of_a_session_that_has_not_closed_is_dropped_by_name(csv, clean, last, seen, dropped):
    prices = load(DataConfig(source=csv(clean.loc[:last])), now=datetime.fromisoformat(f"{seen}+00:00"))
    expected = clean.loc[:last].iloc[: -1 if dropped else None]
    pd.testing.assert_frame_equal(prices.close, expected, check_freq=False, check_names=False)
    assert [(fault.rule, fault.date) for fault in prices.faults] == ([("unfinished", last)] if dropped else [])


@pytest.mark.parametrize(
    ("written", "dropped"),
    [("2018-06-15 15:00", True), ("2018-06-15 20:30", False), ("2018-06-16 00:30", False), ("1980-01-01 00:00", False)],
)
def test_file_written_while_its_last_session_was_open_stays_unfinished(csv, clean, written, dropped):
    source = csv(clean.loc[:"2018-06-15"])
    seconds = datetime.fromisoformat(f"{written}+00:00").timestamp()
    os.utime(source, (seconds, seconds))
    prices = load(DataConfig(source=source), now=datetime(2018, 7, 1, tzinfo=UTC))
    assert [fault.rule for fault in prices.faults] == ["unfinished"] * dropped


@pytest.mark.parametrize(
    "rows",
    ["2020-01-04,5\n", "2020-01-04,5\n2020-01-05,5\n", "2020-01-03,5\n", "0202-01-03,5\n2020-01-03,5\n"],
    ids=["a Saturday", "a weekend", "one session", "a year of three digits"],
)
def test_table_with_next_to_no_sessions_is_refused_with_a_date(tmp_path, rows):
    (tmp_path / "prices.csv").write_text("date,KO\n" + rows)
    with pytest.raises(DataError, match=rows[:10]):
        load(DataConfig(source=str(tmp_path / "prices.csv")))


def test_faults_are_all_named_at_once(csv, clean):
    damaged = put(200, -1.0)(put(100, 0.0)(clean))
    damaged.iloc[300, 0] = np.inf
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=csv(damaged)))
    for named in (f"KO {day(clean, 100)}", f"KO {day(clean, 200)}", f"AAPL {day(clean, 300)}"):
        assert named in str(caught.value)


def test_fault_outside_the_dates_asked_for_does_not_matter(csv, clean):
    source = csv(put(100, -1.0)(clean))
    prices = load(DataConfig(source=source, start=clean.index[101].date()))
    pd.testing.assert_frame_equal(prices.close, clean.iloc[101:], check_freq=False, check_names=False)


def test_fault_of_a_ticker_not_asked_for_does_not_matter(csv, clean):
    assert load(DataConfig(source=csv(put(100, 0.0)(clean)), tickers=("AAPL",))).tickers == ["AAPL"]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: blank(0, 50)(table).assign(AAPL=table["AAPL"].iloc[:-50]),
        still(200, 209),
        scaled(200, None, 1.5),
    ],
    ids=["listing and delisting", "nine equal closes", "a large move that stays"],
)
def test_what_prices_do_is_no_fault(csv, clean, change):
    prices = load(DataConfig(source=csv(change(clean))))
    assert prices.faults == ()
    pd.testing.assert_frame_equal(prices.close, change(clean), check_freq=False, check_names=False)


def test_real_move_is_accepted_where_it_was_confirmed_and_nowhere_else(csv, clean):
    source = csv(scaled(0, 200, 2)(scaled(0, 100, 2)(clean)))
    with pytest.raises(DataError) as caught:
        load(DataConfig(source=source, real_moves=(f"KO:{day(clean, 100)}",)))
    assert day(clean, 100) not in str(caught.value)
    assert f"split: KO {day(clean, 200)}" in str(caught.value)
    both = (f"KO:{day(clean, 100)}", f"KO:{day(clean, 200)}")
    assert load(DataConfig(source=source, real_moves=both)).faults == ()


# Prices that would have to be invented, prices that stand still, bad ticks.


@pytest.mark.parametrize(
    ("thin", "share"),
    [
        (lambda table: table.groupby(table.index.to_period("W")).tail(1), "79%"),
        (lambda table: table.groupby(table.index.to_period("M")).tail(1), "95%"),
        (lambda table: table.iloc[::6], "83%"),
        (lambda table: table.iloc[::2], "50%"),
        (lambda table: table.drop(table.index[1::25]), "4%"),
    ],
    ids=["weekly", "monthly", "every sixth session", "every second session", "one of 25 missing"],
)
def test_gaps_that_are_short_but_many_are_refused_with_their_share(csv, clean, thin, share):
    with pytest.raises(DataError, match=rf"missing: AAPL .*\({share}\)") as caught:
        load(DataConfig(source=csv(thin(clean))))
    assert str(caught.value).count("\n") == 2  # a line per ticker, and none on moves between prices far apart


def test_few_short_gaps_are_filled_and_summarized(csv, clean):
    gaps = [30, 90, 150, 210, 270]
    prices = load(DataConfig(source=csv(clean.drop(clean.index[gaps]))))
    assert len(prices.faults) == 2 * len(gaps)
    assert [line.partition(": last")[0] for line in summarize(prices.faults)] == [
        f"missing: {ticker} 5 gaps filled, {day(clean, 30)} to {day(clean, 270)}" for ticker in ("AAPL", "KO")
    ]


SATURDAYS = ["2018-01-06", "2018-01-13", "2018-01-20", "2018-01-27"]


@pytest.mark.parametrize(
    ("days", "line"),
    [
        (SATURDAYS[:1], "non_session: 2018-01-06: "),
        (SATURDAYS, "non_session: 4 rows dropped, 2018-01-06 to"),
    ],
)
def test_rows_on_days_without_trading_are_named_without_a_ticker(csv, clean, days, line):
    extra = pd.DataFrame(40.0, index=pd.DatetimeIndex(days), columns=clean.columns)
    prices = load(DataConfig(source=csv(pd.concat([clean, extra]).sort_index())))
    (summary,) = summarize(prices.faults)
    assert summary.startswith(line)


@pytest.mark.parametrize(("first", "last"), [(200, None), (200, 210), (0, None)], ids=["to the end", "10", "always"])
def test_close_that_does_not_move_is_stale(csv, clean, first, last):
    source = csv(still(first, last)(clean))
    with pytest.raises(DataError, match=f"stale: KO {day(clean, first)}"):
        load(DataConfig(source=source))
    confirmed = DataConfig(source=source, real_moves=(f"KO:{day(clean, first)}",))
    assert load(confirmed).faults == ()


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5, 1.3])
@pytest.mark.parametrize("length", [1, 3])
def test_bad_tick_far_outside_the_usual_moves_is_refused(csv, clean, factor, length):
    damaged = scaled(200, 200 + length, factor)(clean)
    with pytest.raises(DataError, match=rf"1 fault.*\n.*jump: KO {day(clean, 200)}: moves by"):
        load(DataConfig(source=csv(damaged)))


def test_every_bad_tick_of_the_index_is_named(bundled):
    close = bundled.close.copy()
    rows = np.arange(500, 8000, 400)
    close.iloc[rows] *= 1.5
    with pytest.raises(DataError) as caught:
        validate({"close": close})
    assert str(caught.value).startswith(f"{len(rows)} faults")
    assert all(f"{close.index[row]:%Y-%m-%d}" in str(caught.value) for row in rows)


# Splits anywhere in 33 years.


@pytest.mark.parametrize("ratio", [2.0, 10.0])
@pytest.mark.parametrize("ticker", ["^GSPC", "AAPL", "JPM", "KO", "XOM"])
def test_split_on_any_date_is_caught_on_that_date(bundled, bundled_stocks, ticker, ratio):
    close = (bundled if ticker == "^GSPC" else bundled_stocks).close[[ticker]]
    rows = np.random.default_rng(7).choice(np.arange(1, len(close)), 30, replace=False)
    for row in rows:
        unadjusted = close.copy()
        unadjusted.iloc[:row] *= ratio
        with pytest.raises(DataError, match=f"split: .{ticker[1:]} {day(close, row)}"):
            validate({"close": unadjusted})


def test_split_on_the_wildest_days_of_the_index_is_caught(bundled):
    moves = np.log(bundled.close["^GSPC"]).diff()
    for when in [*moves.nlargest(5).index, *moves.nsmallest(5).index]:
        unadjusted = bundled.close.copy()
        unadjusted.loc[unadjusted.index < when] *= 2
        with pytest.raises(DataError, match=f"(split|jump): .GSPC {when:%Y-%m-%d}"):
            validate({"close": unadjusted})


# Volume: 0 on a day is no volume; the feature of it would be a hundred deviations wide.


def test_volume_that_is_0_often_is_refused(csv, ohlcv):
    ohlcv.loc[100:499:20, "volume"] = 0
    with pytest.raises(DataError, match=f"missing: KO {day(ohlcv, 100)}.*leave that column out"):
        load(DataConfig(source=csv(ohlcv)))


@pytest.mark.parametrize("last", [200, None], ids=["at first", "always"])
def test_volume_that_was_always_0_stays(csv, ohlcv, last):
    ohlcv.iloc[:last, ohlcv.columns.get_loc("volume")] = 0
    prices = load(DataConfig(source=csv(ohlcv)))
    assert prices.faults == ()
    change = features(prices).series[0].x[:, names(prices).index("volume_change")]
    assert np.abs(change).max() <= np.log(1.1e6 / 1e6)
