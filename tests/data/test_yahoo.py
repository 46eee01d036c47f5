"""Downloads: a warm cache makes no call, a bad network at most five, and what was used instead is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import yfinance
from yfinance.exceptions import YFRateLimitError

from sp500.commands.experiments import prepare
from sp500.config import DataConfig
from sp500.data.prices import Prices
from sp500.data.sources import load
from sp500.data.sources.yahoo import DEADLINE_SECONDS, TRY_SECONDS, download
from sp500.errors import ConfigError, DataError
from sp500.runs.store import Run

NOW = 1_700_000_000.0
DAY = 24 * 3600.0


class Yahoo:
    """A stand-in for yfinance.download: answers as it would (its end is exclusive), after some failures."""

    def __init__(self, close: pd.DataFrame, failures: tuple[object, ...] = ()) -> None:
        self.close, self.failures, self.calls = close, list(failures), 0

    def __call__(self, tickers: list[str], start: str | None, end: str | None) -> pd.DataFrame:
        self.calls += 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure(self.answer(tickers, start, end))
        return self.answer(tickers, start, end)

    def answer(self, tickers: list[str], start: str | None, end: str | None) -> pd.DataFrame:
        close = self.close[tickers].loc[start:end]
        close = close[close.index < pd.Timestamp(end)] if end else close
        fields = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": close * 0 + 1e6}
        return pd.concat(fields, axis=1, names=["Price", "Ticker"])


class Clock:
    """Seconds that pass only in `sleep`."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(source="yfinance", tickers=("AAPL", "KO"), cache_dir=tmp_path)


def get(config: DataConfig, yahoo: Yahoo, *, at: float = NOW) -> Prices:
    prices = download(config, fetch=yahoo, now=lambda: at, sleep=Clock().sleep)
    for path in config.cache_dir.glob("*.parquet"):
        if path.stat().st_mtime > NOW + 365 * DAY:  # just written, by the real clock
            os.utime(path, (at, at))
    return prices


def test_download_gives_the_prices_of_the_answer(config, clean):
    yahoo = Yahoo(clean)
    prices = get(config, yahoo)
    assert yahoo.calls == 1
    assert (prices.source, prices.notes, prices.faults) == ("yfinance", (), ())
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)


def test_warm_cache_makes_no_call_and_gives_the_same_prices(config, clean):
    first = get(config, Yahoo(clean))
    silent = Yahoo(clean * 2)
    second = get(config, silent, at=NOW + 0.9 * DAY)
    assert silent.calls == 0
    assert second.sha256 == first.sha256


@pytest.mark.parametrize(
    ("change", "calls"), [({"tickers": ("KO", "aapl ", "AAPL", " ko")}, 0), ({"start": date(2017, 6, 15)}, 1)], ids=str
)
def test_same_tickers_share_a_cache_and_other_dates_do_not(config, clean, change, calls):
    get(config, Yahoo(clean))
    yahoo = Yahoo(clean)
    prices = get(config.model_copy(update=change), yahoo)
    assert (yahoo.calls, sorted(prices.tickers)) == (calls, ["AAPL", "KO"])
    assert prices.tickers[0] == ("AAPL" if calls else "KO")


def test_session_that_was_open_stays_unfinished_in_the_cache(config, clean):
    close = clean.loc[:"2018-06-15"]
    in_session, at_night = (pd.Timestamp(f"2018-06-15 {hour}:30", tz="UTC").timestamp() for hour in (15, 23))
    yahoo = Yahoo(close)
    for moment in (in_session, at_night):
        prices = get(config, yahoo, at=moment)
        assert [(fault.rule, fault.date) for fault in prices.faults] == [("unfinished", "2018-06-15")]
        assert f"{prices.close.index[-1]:%Y-%m-%d}" == "2018-06-14"
    assert yahoo.calls == 1
    assert get(config, yahoo, at=in_session + 2 * DAY).faults == ()


def test_stale_cache_is_refreshed(config, clean):
    get(config, Yahoo(clean))
    yahoo = Yahoo(clean * 2)
    assert get(config, yahoo, at=NOW + 2 * DAY).close.iloc[0, 0] == clean.iloc[0, 0] * 2
    assert yahoo.calls == 1


def test_last_date_asked_for_is_included(config, clean):
    last = clean.index[-20]
    prices = get(config.model_copy(update={"end": last.date()}), Yahoo(clean))
    assert prices.close.index[-1] == last


def empty(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:0]


def without_one_ticker(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="KO", level=1)


def one_ticker_blank(frame: pd.DataFrame) -> pd.DataFrame:
    frame.loc[:, (slice(None), "KO")] = np.nan
    return frame


FAILURES = {
    "429": OSError("HTTP Error 429: Too Many Requests"),
    "time-out": TimeoutError("timed out"),
    "nonsense": ValueError("Expecting value: line 1 column 1"),
    "empty": empty,
    "partial": without_one_ticker,
    "blank": one_ticker_blank,
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("times", [1, 4])
def test_failure_that_passes_is_retried(config, clean, failure, times):
    yahoo = Yahoo(clean, (failure,) * times)
    assert get(config, yahoo).tickers == ["AAPL", "KO"]
    assert yahoo.calls == times + 1


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_failure_that_stays_ends_in_an_error_the_fallback_or_the_old_cache(config, clean, failure):
    yahoo = Yahoo(clean, (failure,) * 99)
    with pytest.raises(DataError, match=r"AAPL, KO.*--fallback bundled"):
        get(config, yahoo)
    assert yahoo.calls == 5
    assert list(config.cache_dir.iterdir()) == []

    asked = config.model_copy(update={"fallback": "bundled"})
    prices = load(asked, download=lambda asked: get(asked, yahoo))
    assert prices.source == "bundled"
    assert prices.sha256 == load(DataConfig(tickers=("AAPL", "KO"))).sha256
    assert "NOT the prices" in prices.notes[0]

    get(config, Yahoo(clean))
    prices = get(config, yahoo, at=NOW + 3.5 * DAY)
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)
    assert any("3.5 days" in note for note in prices.notes)


def test_rate_limit_of_yfinance_is_tried_five_times_and_named(config, monkeypatch):
    limited = Mock(side_effect=YFRateLimitError)
    monkeypatch.setattr(yfinance, "download", limited)
    with pytest.raises(DataError, match="Too Many Requests"):
        download(config, now=lambda: NOW, sleep=Clock().sleep)
    assert limited.call_count == 5


def test_missing_package_is_said_at_once(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "yfinance", None)  # as where it is not installed
    clock = Clock()
    with pytest.raises(ConfigError, match=r"pip install 'sp500\[yahoo\]'"):
        download(config, now=lambda: NOW, sleep=clock.sleep)
    assert clock.slept == []


def test_interrupted_download_is_not_tried_again(config, clean):
    clock, yahoo = Clock(), Yahoo(clean, (lambda frame: interrupt(),))
    with pytest.raises(KeyboardInterrupt):
        download(config, fetch=yahoo, now=lambda: NOW, sleep=clock.sleep)
    assert (yahoo.calls, clock.slept) == (1, [])


def interrupt() -> None:
    raise KeyboardInterrupt


def test_call_of_yfinance_is_bounded_in_time_and_adjusted(config, clean, monkeypatch):
    def answer(tickers: list[str], **options: object) -> pd.DataFrame:
        assert options["timeout"] * len(tickers) <= TRY_SECONDS
        assert options["auto_adjust"] is True
        return Yahoo(clean).answer(tickers, None, None).rename(columns=str.title, level=0)

    monkeypatch.setattr(yfinance, "download", answer)
    prices = download(config, now=lambda: NOW, sleep=Clock().sleep)
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)


def test_prepare_downloads_prices_once(bundled_stocks, tmp_path, monkeypatch, caplog):
    def answer(tickers: list[str], **_: object) -> pd.DataFrame:
        return Yahoo(bundled_stocks.close).answer(tickers, None, None).rename(columns=str.title, level=0)

    monkeypatch.setattr(yfinance, "download", answer)
    (tmp_path / "file").touch()
    config = DataConfig(source="yfinance", tickers=("KO",), start="2014-01-01", cache_dir=tmp_path / "file")
    for out in ("", str(tmp_path / "set")):
        caplog.clear()
        card = prepare.act(prepare.Prepare(data=config, out=out), Run(tmp_path / "one")).data
        assert card["feature_summary"]["log_return"]["count"] > 2000
        assert caplog.text.count("the prices are not kept") == 1  # as its cache cannot be written


def test_pauses_and_tries_stay_within_the_deadline(config, clean):
    clock = Clock()
    with pytest.raises(DataError):
        download(config, fetch=Yahoo(clean, (TimeoutError(),) * 99), now=lambda: NOW, sleep=clock.sleep)
    assert sum(clock.slept) + 5 * TRY_SECONDS <= DEADLINE_SECONDS == 120


@pytest.mark.parametrize("length", [100, 0])
def test_damaged_cache_is_downloaded_anew_or_as_if_there_were_none(config, clean, length):
    get(config, Yahoo(clean))
    for path in config.cache_dir.iterdir():
        path.write_bytes(path.read_bytes()[:length])
        os.utime(path, (NOW, NOW))
    with pytest.raises(DataError, match="--fallback bundled"):
        get(config, Yahoo(clean, (TimeoutError(),) * 99), at=NOW + 2 * DAY)
    yahoo = Yahoo(clean)
    assert get(config, yahoo).tickers == ["AAPL", "KO"]
    assert yahoo.calls == 1


def test_bad_prices_are_refused_and_never_cached(config, clean):
    clean.iloc[:100, 1] *= 2
    with pytest.raises(DataError, match="split: KO"):
        get(config, Yahoo(clean))
    assert list(config.cache_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda frame: pd.concat([frame, frame.iloc[-1:]]), "duplicate"),
        (lambda frame: frame.iloc[::-1], "unsorted"),
        (lambda frame: frame.tz_localize("America/New_York"), "timezone"),
    ],
    ids=["last day twice", "newest first", "with a time zone"],
)
def test_answer_of_another_form_is_repaired_by_name(config, clean, answer, rule):
    prices = get(config, Yahoo(clean, (answer,)))
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)
    assert {fault.rule for fault in prices.faults} <= {rule}


def with_another_price(row: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Adds a second row of a day, whose prices and volume are higher."""
    return lambda frame: pd.concat([frame, frame.iloc[[row]] * 1.01]).sort_index(kind="stable")


def test_later_row_of_a_last_day_that_is_there_twice_counts_by_name(config, clean):
    prices = get(config, Yahoo(clean, (with_another_price(-1),)))
    last = f"{clean.index[-1]:%Y-%m-%d}"
    assert {(fault.rule, fault.ticker, fault.date) for fault in prices.faults} == {
        ("duplicate", "AAPL", last),
        ("duplicate", "KO", last),
    }
    np.testing.assert_array_equal(prices.close.iloc[:-1], clean.iloc[:-1])
    np.testing.assert_array_equal(prices.close.iloc[-1], clean.iloc[-1] * 1.01)


def test_earlier_day_with_two_prices_is_refused(config, clean):
    with pytest.raises(DataError, match=f"duplicate: AAPL {clean.index[-2]:%Y-%m-%d}"):
        get(config, Yahoo(clean, (with_another_price(-2),)))


def test_ticker_without_its_newest_row_ends_a_session_earlier(config, clean):
    def newest_missing(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame.index[-1], (slice(None), "AAPL")] = np.nan
        return frame.drop(frame.index[-3])

    prices = get(config, Yahoo(clean, (newest_missing,)))
    day = f"{clean.index[-3]:%Y-%m-%d}"
    assert [(fault.rule, fault.ticker, fault.date) for fault in prices.faults] == [
        ("missing", "AAPL", day),
        ("missing", "KO", day),
    ]
    ends = prices.close.apply(pd.Series.last_valid_index)
    assert (ends["AAPL"], ends["KO"]) == (clean.index[-2], clean.index[-1])


def test_cache_that_cannot_be_written_is_a_warning_and_the_prices_count(config, clean, tmp_path, caplog):
    (tmp_path / "file").touch()
    prices = get(config.model_copy(update={"cache_dir": tmp_path / "file" / "cache"}), Yahoo(clean))
    pd.testing.assert_frame_equal(prices.close, clean, check_freq=False, check_names=False)
    (message,) = caplog.messages
    assert str(tmp_path / "file" / "cache") in message


@pytest.mark.parametrize("names", [("EZJ.L", "^GSPC"), ("M&M.NS", "EURUSD=X"), ("BRK-B", "0700.HK")], ids=str)
def test_names_of_other_exchanges_are_asked_for_as_they_are(config, clean, names):
    yahoo = Yahoo(clean.set_axis([*names], axis=1))
    assert get(config.model_copy(update={"tickers": names}), yahoo).tickers == [*names]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(("BRK.B", "BRK-B$"), ("bf/b", "BF-B$"), ("BRK A", "BRK-A$"), ("AAPL,KO", "blanks"), ("$KO", "blanks")),
        *(("", ""), ("stocks", "names of the stocks")),
    ],
)
def test_name_that_yahoo_cannot_have_is_refused_without_a_call(config, clean, name, said):
    yahoo = Yahoo(clean)
    with pytest.raises(DataError, match=rf"data.tickers: .*{said}"):
        get(config.model_copy(update={"tickers": ("AAPL", name)}), yahoo)
    assert yahoo.calls == 0
