"""Splits: parts in order of date, a purged gap between them, nothing of one part inside another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sp500.data.splits import Split, split
from sp500.errors import DataError

DATES = np.datetime64("2000-01-03") + np.arange(4000)


def places(cut: Split, dates: np.ndarray) -> dict[str, tuple[int, int]]:
    spans = {"train": cut.train, "valid": cut.valid, "test": cut.test}
    return {
        name: (int(np.flatnonzero(dates == span[0])[0]), int(np.flatnonzero(dates == span[1])[0]))
        for name, span in spans.items()
        if span
    }


def attempt(count: int, test: float, valid: float, gap: int) -> dict[str, tuple[int, int]]:
    try:
        return places(split(DATES[:count], test_fraction=test, valid_from_train=valid, gap=gap), DATES[:count])
    except DataError:
        assume(False)
        raise


counts = st.integers(50, len(DATES))
fractions = st.floats(0.05, 0.6)


@given(count=counts, test=fractions, valid=fractions, window=st.integers(1, 60), horizon=st.integers(1, 10))
def test_no_day_is_used_by_two_parts(count, test, valid, window, horizon):
    found = attempt(count, test, valid, window + horizon)
    used: list[set[int]] = []
    for first, last in found.values():
        days: set[int] = set()
        for forecast_day in range(first, last + 1):
            # The window ends on the day of the forecast; its target is known `horizon` days later.
            days |= {*range(forecast_day - window + 1, forecast_day + 1), forecast_day + horizon}
        used.append(days)
    assert len(used) == 3
    assert not used[0] & used[1]
    assert not used[1] & used[2]
    assert not used[0] & used[2]


@given(count=counts, test=fractions, valid=fractions, gap=st.integers(1, 60))
def test_parts_follow_each_other_with_exactly_the_gap_between(count, test, valid, gap):
    found = attempt(count, test, valid, gap)
    assert found["train"][0] == 0
    assert found["train"][1] + gap + 1 == found["valid"][0]
    assert found["valid"][1] + gap + 1 == found["test"][0]
    assert found["test"][1] == count - 1


@given(count=counts, test=fractions, gap=st.integers(1, 60))
def test_no_validation_leaves_train_and_test(count, test, gap):
    found = attempt(count, test, 0.0, gap)
    assert set(found) == {"train", "test"}
    assert found["train"][1] + gap + 1 == found["test"][0]


def test_parts_have_the_sizes_asked_for():
    found = places(split(DATES[:1000], test_fraction=0.2, valid_from_train=0.25, gap=10), DATES)
    assert found == {"train": (0, 589), "valid": (600, 789), "test": (800, 999)}


@pytest.mark.parametrize(
    ("count", "test", "valid", "gap"),
    [(60, 0.15, 0.175, 60), (100, 0.15, 0.175, 31), (1000, 0.15, 0.01, 31), (3, 0.15, 0.0, 31)],
    ids=["no train", "no valid", "valid within its gap", "next to nothing"],
)
def test_too_few_dates_are_refused_by_number(count, test, valid, gap):
    with pytest.raises(DataError, match=f"too_short: {count} dates .* gaps of {gap} sessions"):
        split(DATES[:count], test_fraction=test, valid_from_train=valid, gap=gap)
