"""Windows: against a loop that copies each one out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp500.data.features import Series
from sp500.data.windows import compute_naive_output, windows
from sp500.errors import DataError

DAYS = np.datetime64("2000-01-03") + np.arange(200)


def series(ticker: str, first: int, count: int, horizon: int = 1) -> Series:
    generator = np.random.default_rng(first)
    y = generator.standard_normal(count)
    y[count - horizon :] = np.nan
    return Series(ticker, DAYS[first : first + count], generator.standard_normal((count, 3)), y)


def naive(
    many: list[Series], span: tuple[np.datetime64, np.datetime64], length: int
) -> list[tuple[str, np.datetime64, np.ndarray, float]]:
    found = []
    for one in many:
        for row in range(len(one.dates)):
            if row >= length - 1 and span[0] <= one.dates[row] <= span[1] and not np.isnan(one.y[row]):
                found.append((one.ticker, one.dates[row], one.x[row - length + 1 : row + 1], one.y[row]))
    return found


@given(
    lives=st.lists(st.tuples(st.integers(0, 100), st.integers(3, 100)), min_size=1, max_size=3),
    first=st.integers(0, 150),
    days=st.integers(0, 100),
    length=st.integers(1, 12),
    horizon=st.integers(1, 3),
)
def test_windows_equal_a_loop_that_copies_them(lives, first, days, length, horizon):
    many = [series(f"T{number}", start, count, horizon) for number, (start, count) in enumerate(lives)]
    span = (DAYS[first], DAYS[min(first + days, len(DAYS) - 1)])
    found = windows(many, span, length, horizon=horizon, dtype="float64")
    expected = naive(many, span, length)
    assert len(found) == len(expected)
    for number, (ticker, date, x, y) in enumerate(expected):
        np.testing.assert_array_equal(found.rows[found.starts[number] :][:length], x)
        assert found.targets[number] == y
        named = found.index.iloc[number]
        assert (named["ticker"], named["date"], named["return"]) == (ticker, pd.Timestamp(date), y)


def test_rows_are_kept_once_whatever_the_length():
    found = windows([series("A", 0, 150), series("B", 0, 150)], (DAYS[0], DAYS[-1]), 30)
    assert len(found) == 2 * (150 - 30 + 1 - 1)
    assert len(found.rows) == 2 * 149


def test_window_reaches_back_before_the_span_but_never_after_it():
    one = series("A", 0, 150)
    found = windows([one], (DAYS[100], DAYS[109]), 5, dtype="float64")
    assert len(found) == 10
    np.testing.assert_array_equal(found.rows, one.x[96:110])


@pytest.mark.parametrize("horizon", [1, 3])
def test_previous_is_the_return_known_on_the_day_of_the_forecast(horizon):
    price = np.cumprod(1 + 0.01 * np.random.default_rng(0).standard_normal(150))
    y = np.r_[np.log(price[horizon:] / price[:-horizon]), np.full(horizon, np.nan)]
    one = Series("A", DAYS[:150], np.zeros((150, 3)), y)
    index = windows([one], (DAYS[20], DAYS[149]), 5, horizon=horizon).index
    for _, row in index.iterrows():
        today = int(np.flatnonzero(one.dates == np.datetime64(row["date"], "D"))[0])
        assert row["previous"] == pytest.approx(np.log(price[today] / price[today - horizon]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_and_targets_have_the_number_type_asked_for(dtype):
    found = windows([series("A", 0, 50)], (DAYS[0], DAYS[-1]), 5, dtype=dtype)
    assert (found.rows.dtype, found.targets.dtype, found.starts.dtype) == (dtype, dtype, np.int64)


def test_no_window_in_the_span_is_an_empty_set():
    found = windows([series("A", 0, 50)], (DAYS[100], DAYS[110]), 5)
    assert len(found) == 0


@pytest.mark.parametrize("direction", [True, False])
def test_naive_output_knows_no_target(direction):
    with pytest.raises(DataError, match="no training window has a known target"):
        compute_naive_output(np.full(3, np.nan), direction=direction)
