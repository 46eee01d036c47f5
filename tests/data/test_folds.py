"""Walk-forward folds: years in order, nothing of one part inside another, and no later price in an earlier fold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sp500.config import DataConfig
from sp500.data import folds
from sp500.data.features import features
from sp500.data.folds import Folds
from sp500.data.prices import Prices
from sp500.data.splits import Split, walk_forward
from sp500.errors import DataError

DATES = np.datetime64("2000-01-03") + np.arange(4000)


def places(cut: Split) -> dict[str, tuple[int, int]]:
    spans = {"train": cut.train, "valid": cut.valid, "test": cut.test}
    return {
        name: (int(np.searchsorted(DATES, span[0])), int(np.searchsorted(DATES, span[1])))
        for name, span in spans.items()
        if span
    }


def attempt(count: int, number: int, test_days: int, valid: float, gap: int) -> list[dict[str, tuple[int, int]]]:
    try:
        found = walk_forward(DATES[:count], folds=number, test_days=test_days, valid_from_train=valid, gap=gap)
    except DataError:
        assume(False)
        raise
    return [places(cut) for cut in found]


counts, numbers, lengths = st.integers(300, len(DATES)), st.integers(1, 8), st.integers(1, 300)


@given(
    count=counts,
    number=numbers,
    days=lengths,
    valid=st.floats(0.05, 0.5),
    window=st.integers(1, 40),
    horizon=st.integers(1, 9),
)
def test_no_day_is_used_by_two_parts_of_a_fold(count, number, days, valid, window, horizon):
    for fold in attempt(count, number, days, valid, window + horizon):
        used: list[set[int]] = []
        for first, last in fold.values():
            seen: set[int] = set()
            for forecast_day in range(first, last + 1):
                seen |= {*range(forecast_day - window + 1, forecast_day + 1), forecast_day + horizon}
            used.append(seen)
        assert len(used) == 3
        assert not used[0] & used[1]
        assert not used[1] & used[2]
        assert not used[0] & used[2]


@given(count=counts, number=numbers, days=lengths, valid=st.sampled_from([0.0, 0.2]), gap=st.integers(1, 60))
def test_tests_follow_each_other_to_the_last_date_and_training_grows(count, number, days, valid, gap):
    found = attempt(count, number, days, valid, gap)
    assert len(found) == number
    assert [fold["test"] for fold in found] == [
        (count - days * left, count - days * (left - 1) - 1) for left in range(number, 0, -1)
    ]
    for fold in found:
        assert fold["train"][0] == 0
        before = fold["valid"] if valid else fold["train"]
        assert before[1] + gap + 1 == fold["test"][0]
        assert not valid or fold["train"][1] + gap + 1 == fold["valid"][0]
    ends = [fold["train"][1] for fold in found]
    # The one day more of a fold may go to its validation alone.
    assert ends == sorted(ends if valid and days == 1 else set(ends))


def test_folds_have_the_sizes_asked_for():
    found = attempt(1000, 2, 100, 0.25, 10)
    assert found == [
        {"train": (0, 589), "valid": (600, 789), "test": (800, 899)},
        {"train": (0, 664), "valid": (675, 889), "test": (900, 999)},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "days", "valid"),
    [(11, 100, 0.2), (9, 100, 0.2), (9, 107, 0.0)],
    ids=["more tests than dates", "validation within its gap", "no train"],
)
def test_too_few_dates_are_refused(number, days, valid):
    with pytest.raises(DataError, match=r"too_short: .* use"):
        walk_forward(DATES[:1000], folds=number, test_days=days, valid_from_train=valid, gap=60)


@pytest.fixture(scope="module")
def two(bundled_stocks: Prices) -> Prices:
    """Two stocks over seven years; the first is listed late."""
    close = bundled_stocks.close.loc["2014":"2020", ["AAPL", "KO"]].copy()
    close.iloc[:300, 0] = np.nan
    return Prices({"close": close}, "test")


def made(prices: Prices, *, chosen_until: str | None = None, **settings: object) -> Folds:
    config = DataConfig(**settings)
    table = features(prices, config.horizon)
    return folds.cut(prices, table, config, folds=3, test_days=150, chosen_until=chosen_until)


@pytest.mark.parametrize("settings", [{}, {"horizon": 5, "multiplier": 2, "augment": "bootstrap"}], ids=["day", "week"])
def test_prices_after_the_last_return_of_a_fold_change_no_bit_of_it(two, settings):
    before = made(two, **settings)
    for number in (1, 2):
        last = two.close.index.get_loc(pd.Timestamp(before.cuts[number - 1].test[1]))
        close = two.close.copy()
        close.iloc[last + before.config.horizon + 1 :] *= 7
        assert not close.equals(two.close)
        after = made(replace(two, fields={"close": close}), **settings)
        assert after.cuts == before.cuts
        old, new = (one.dataset(number, "float64", direction=False) for one in (before, after))
        assert old.target_scale == new.target_scale
        for name in ("train", "valid", "test"):
            first, second = getattr(old, name), getattr(new, name)
            np.testing.assert_array_equal(first.rows, second.rows)
            np.testing.assert_array_equal(first.targets, second.targets)


def test_every_fold_is_scaled_by_its_own_training_dates(two):
    found = made(two)
    for number, cut in enumerate(found.cuts, start=1):
        rows = np.concatenate([one.x[one.dates <= cut.train[1]] for one in found.table.series])
        dataset = found.dataset(number, "float64", direction=False)
        ko = found.table.series[1]
        first = int(np.flatnonzero(ko.dates == cut.test[0])[0])
        expected = (ko.x[first - 29 : first + 1] - rows.mean(axis=0)) / rows.std(axis=0)
        place = int(np.flatnonzero(dataset.test.index["ticker"] == "KO")[0])
        start = dataset.test.starts[place]
        np.testing.assert_allclose(dataset.test.rows[start : start + 30], expected, rtol=1e-9, atol=1e-9)


def test_all_tests_have_as_many_windows_and_end_where_returns_do(two):
    found = made(two, horizon=3)
    datasets = [found.dataset(number, "float32", direction=False) for number in (1, 2, 3)]
    assert [len(one.test) for one in datasets] == [300, 300, 300]
    assert datasets[-1].test.index["date"].max() == two.close.index[-4]
    assert len(datasets[0].train) < len(datasets[1].train) < len(datasets[2].train)


@pytest.mark.parametrize("horizon", [1, 4])
def test_fold_is_blind_when_all_returns_that_chose_the_config_came_before(two, horizon):
    first = made(two, horizon=horizon).cuts[1].test[0]
    dates = features(two, horizon).dates
    place = int(np.searchsorted(dates, first))
    chosen = [str(dates[place - horizon]), str(dates[place - horizon + 1])]
    assert [made(two, horizon=horizon, chosen_until=day).blind for day in chosen] == [
        (False, True, True), (False, False, True)
    ]  # fmt: skip
    assert made(two).blind == (None, None, None)
