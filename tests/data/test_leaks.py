"""The probe: columns and targets with values of the future are refused by name and date, honest ones pass."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import price_files
import pytest
from scipy import signal

from sp500.config import DataConfig
from sp500.data import leaks, pipeline
from sp500.data.columns import Hooks
from sp500.data.prices import Prices
from sp500.data.splits import split
from sp500.errors import DataError

Features = Callable[[Prices], Any]
DAY = r"on \d{4}-\d\d-\d\d"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return price_files.write(tmp_path_factory.mktemp("file") / "quant.csv")


def read(source: str, hooks: Hooks, horizon: int = 1) -> dict[str, Any]:
    return dict(pipeline.read(DataConfig(source=source, window=10, horizon=horizon), hooks)[1].state)


def move(prices: Prices) -> pd.DataFrame:
    return np.log(prices.close).diff()


def clock(prices: Prices) -> pd.DataFrame:
    return prices.close * 0 + time.perf_counter_ns() % 1_000_003


def draw(prices: Prices) -> pd.DataFrame:
    return pd.DataFrame(np.random.random(prices.close.shape), prices.close.index, prices.close.columns)


def rolled(compute: Callable[[np.ndarray], float], days: int = 20) -> Features:
    """A number of the last moves of each ticker."""
    return lambda prices: move(prices).rolling(days).apply(compute, raw=True)


def low_pass(window: np.ndarray) -> float:
    """The last value of past moves without their upper half of frequencies."""
    spectrum = np.fft.rfft(window)
    spectrum[len(spectrum) // 2 :] = 0
    return float(np.fft.irfft(spectrum, len(window))[-1])


def smooth(prices: Prices) -> pd.DataFrame:
    """An IIR filter that forgets within a request's history."""
    filtered = signal.lfilter([0.5], [1, -0.5], move(prices).fillna(0).to_numpy(), axis=0)
    return pd.DataFrame(filtered, prices.close.index, prices.close.columns)


_calls = itertools.count()
FUTURE: dict[str, Features] = {
    "tomorrow's close": lambda prices: prices.close.shift(-1) / prices.close - 1,
    "tomorrow's close, the last one filled": lambda prices: (prices.close.shift(-1) / prices.close).fillna(1.0),
    "a centred mean": lambda prices: prices.close.rolling(5, center=True, min_periods=1).mean(),
    "the maximum of all": lambda prices: prices.close / prices.close.max(),
    "scores by all rows": lambda prices: (move(prices) - move(prices).mean()) / move(prices).std(),
    "tomorrow's news": lambda prices: prices["news"].shift(-1).ffill(),
    "filled backwards": lambda prices: prices["news"].where(prices["news"] > 0).bfill().ffill(),
    "rank in time": lambda prices: prices.close.rank(pct=True),
    "the last close of all": lambda prices: prices.close / prices.close.iloc[-1],
    "tomorrow's sign": lambda prices: np.sign(move(prices).shift(-1)).fillna(0),
    "interpolated both ways": lambda prices: (
        prices["news"].where(prices["news"] > 0).interpolate(limit_direction="both")
    ),
    "clipped at quantiles of all": lambda prices: move(prices).clip(
        move(prices).quantile(0.1), move(prices).quantile(0.9), axis=1
    ),
    "a month's mean": lambda prices: move(prices).groupby(prices.close.index.to_period("M")).transform("mean"),
}
CHANCE: dict[str, Features] = {
    "drawn": draw,
    "clock": clock,
    "number of calls": lambda prices: prices.close * next(_calls),
}
HONEST: dict[str, Features] = {
    "a move": move,
    "rolling": lambda prices: move(prices).rolling(40).std(),
    "of five days": lambda prices: np.log(prices.close).diff(5),
    "lagged": lambda prices: move(prices).shift(3),
    "a median": lambda prices: move(prices).rolling(15).median(),
    "a quantile": lambda prices: move(prices).rolling(30).quantile(0.9),
    "skew": lambda prices: move(prices).rolling(30).skew(),
    "largest of a month": lambda prices: move(prices).rolling(21).max(),
    "rank in the last days": lambda prices: prices.close.rolling(20).rank(),
    "score by the last days": lambda prices: (
        (prices.close - prices.close.rolling(20).mean()) / prices.close.rolling(20).std()
    ),
    "clipped by the last days": lambda prices: move(prices).clip(-move(prices).rolling(50).std(), axis=0),
    "distance to a high": lambda prices: prices.close / prices.close.rolling(50).max() - 1,
    "crossing": lambda prices: (prices.close.rolling(5).mean() > prices.close.rolling(20).mean()) * 1.0,
    "correlation with the news": lambda prices: move(prices).rolling(20).corr(prices["news"]),
    "news filled forwards": lambda prices: prices["news"].where(prices["news"] > -2).ffill(limit=10).fillna(0),
    "yesterday's news": lambda prices: prices["news"].shift(1),
    "mean news": lambda prices: prices["news"].ewm(halflife=2).mean(),
    "exponential deviation": lambda prices: move(prices).ewm(span=4).std(),
    "a linear filter": smooth,
    "a filter by frequency": rolled(low_pass, 16),
    "a slope": rolled(lambda moves: float(np.polyfit(np.arange(len(moves)), np.cumsum(moves), 1)[0])),
    "ups in a row": rolled(lambda moves: float((moves > 0)[::-1].cumprod().sum())),
    "autocorrelation": rolled(lambda moves: float(np.corrcoef(moves[1:], moves[:-1])[0, 1])),
    "less the mean of the tickers": lambda prices: move(prices).sub(move(prices).mean(axis=1), axis=0),
    "share of rising tickers": lambda prices: move(prices).gt(0).mean(axis=1).to_frame("AAA").assign(BBB=0.0),
    "exponential": lambda prices: move(prices).ewm(span=5).mean(),
    "of the file": lambda prices: prices["news"],
    "across tickers": lambda prices: move(prices).rank(axis=1),
    "a drawn number with a seed": lambda prices: move(prices) + np.random.default_rng(1).random(),
    "days of the week": lambda prices: prices.close * 0 + np.asarray(prices.close.index.day_of_week)[:, None],
}


@pytest.mark.parametrize("name", FUTURE)
def test_column_that_knows_the_future_is_refused_with_name_and_date(name, source):
    hooks = Hooks(features=lambda prices: {"honest": move(prices), "mine": FUTURE[name](prices)})
    with pytest.raises(DataError, match=rf"column mine of (AAA|BBB) {DAY} changes when .* (cut|rep)"):
        read(source, hooks)


@pytest.mark.parametrize("name", CHANCE)
def test_column_that_chance_or_a_clock_decides_is_refused(name, source):
    with pytest.raises(DataError, match=rf"column mine of \w+ {DAY} .* two calls"):
        read(source, Hooks(features=lambda prices: {"mine": CHANCE[name](prices)}))


@pytest.mark.parametrize("name", HONEST)
def test_honest_column_passes_and_a_request_gets_what_training_had(name, source):
    hooks = Hooks(features=lambda prices: {"mine": HONEST[name](prices)})
    config = DataConfig(source=source, window=10)
    prepared = pipeline.prepare(config, direction=False, hooks=hooks)
    dataset = prepared.dataset("float64")
    assert dataset.state["history"] == 10 + leaks.HISTORY
    index, test = dataset.test.index, dataset.test
    assert index is not None
    for place in (0, len(index) // 2, len(index) - 1):
        date, ticker = index.loc[place, ["date", "ticker"]]
        end = prepared.prices.close.index.get_loc(date) + 1
        known = prepared.prices.select(slice(end - dataset.state["history"], end))
        x = pipeline.last_windows(known, [ticker], dataset, hooks)[0]
        scale = dataset.train.rows.std() or 1.0
        assert x == pytest.approx(test.rows[test.starts[place] :][:10], abs=2e-6 * scale)
        if not dataset.state["across"]:
            fields = {each: known[each][ticker] for each in ("close", "news")}
            assert pipeline.last_window(fields, dataset, hooks)[0] == pytest.approx(x, abs=1e-9 * scale)


def test_columns_across_tickers_that_begin_and_end_pass(tmp_path):
    table = price_files.make_table()
    other = table[table["ticker"] == "AAA"].assign(ticker="CCC", close=lambda rows: rows["close"][::-1].to_numpy())
    days = table["date"].unique()
    late, early = table[(table["ticker"] == "AAA") | (table["date"] > days[200])], other[other["date"] < days[500]]
    source = price_files.write(tmp_path / "three.csv", pd.concat([late, early]))
    hooks = Hooks(features=lambda prices: {"mine": move(prices).rank(axis=1, pct=True)})
    dataset = pipeline.prepare(DataConfig(source=source, window=10), direction=False, hooks=hooks).dataset("float32")
    assert dataset.state["across"] == ["mine"]


def test_expanding_score_needs_all_days_and_passes_where_the_class_says_so(source):
    def score(prices: Prices) -> dict[str, pd.DataFrame]:
        return {"mine": move(prices) / move(prices).expanding(20).std()}

    with pytest.raises(DataError, match=r"column mine .* all days before"):
        read(source, Hooks(features=score))
    assert read(source, Hooks(features=score, history=1_000_000))["whole"] is True


def test_future_that_only_a_replaced_one_shows_is_found(source):
    days = len(price_files.make_table()) // 2

    def peek(prices: Prices) -> dict[str, pd.DataFrame]:
        """It looks ahead only where all rows are there, as a file read on the side would."""
        ahead = prices.close.shift(-1) if len(prices.close) == days else prices.close
        return {"mine": (ahead > prices.close) * 1.0 + prices.close * 0}

    with pytest.raises(DataError, match="column mine"):
        read(source, Hooks(features=peek))


def test_column_that_looks_far_back_names_the_history_that_it_needs(source):
    def far(prices: Prices) -> dict[str, pd.DataFrame]:
        return {"far": move(prices).rolling(200).mean()}

    with pytest.raises(DataError, match=rf"column far of \w+ {DAY} .* last 70 rows .* write 'history = 280'"):
        read(source, Hooks(features=far))
    assert read(source, Hooks(features=far, history=280))["history"] == 280
    with pytest.raises(DataError, match=r"column all .* all days before"):
        read(source, Hooks(features=lambda prices: {"all": prices.close.expanding().mean()}))


def test_probe_tells_what_a_request_needs(source):
    made = {
        "spread": lambda prices: move(prices).sub(move(prices).mean(axis=1), axis=0),
        "of the first": lambda prices: move(prices).sub(move(prices).iloc[:, 0], axis=0),
        "of the last": lambda prices: move(prices).sub(move(prices).iloc[:, -1], axis=0),
        "mood": lambda prices: prices["mood"],
    }
    state = read(source, Hooks(features=lambda prices: {name: make(prices) for name, make in made.items()}))
    assert (state["columns"], state["across"]) == (["close", "mood"], ["spread", "of the first", "of the last"])


@pytest.mark.parametrize("horizon", [1, 5])
def test_target_may_look_ahead_by_the_horizon_and_no_further(source, horizon):
    def ahead(prices: Prices) -> pd.DataFrame:
        return (move(prices) ** 2).rolling(5).mean().shift(-5)

    if horizon == 5:
        read(source, Hooks(target=ahead), horizon)
        return
    with pytest.raises(DataError, match=rf"column target of \w+ {DAY} changes .* data.horizon = 1"):
        read(source, Hooks(target=ahead), horizon)


def test_target_that_is_drawn_is_refused(source):
    with pytest.raises(DataError, match=r"target of .* two calls"):
        read(source, Hooks(target=draw))


def test_probe_tries_both_ends_of_each_split_and_at_least_eight_dates():
    days = pd.DatetimeIndex(pd.bdate_range("2015-01-01", periods=600))
    dates = days[50:].to_numpy().astype("datetime64[D]")
    cut = split(dates, test_fraction=0.15, valid_from_train=0.175, gap=15)
    rows = leaks.choose_rows(days, dates[0], cut, 5)
    assert cut.valid is not None
    ends = [day for span in (cut.train, cut.valid, cut.test) for day in span][:-1]
    assert {str(day) for day in ends} <= {str(days[row].date()) for row in rows}
    assert len(rows) >= leaks.DATES
    assert (min(rows), max(rows)) == (50, 594)
