"""Intervals for means of correlated days: against statsmodels' formula in a loop, known quantiles, and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sp500.intervals import half_width, standard_error

NORMAL = np.random.default_rng(0).standard_normal(2000)


def clustered(days: int, generator: np.random.Generator) -> np.ndarray:
    """Returns whose volatility follows a GARCH(1,1) with Student-t shocks of 5 degrees of freedom."""
    shocks, returns, variance = generator.standard_t(5, days + 200) / np.sqrt(5 / 3), np.empty(days + 200), 1.0
    for day, shock in enumerate(shocks):
        returns[day] = np.sqrt(variance) * shock
        variance = 0.02 + 0.10 * returns[day] ** 2 + 0.88 * variance
    return returns[200:]


def test_standard_error_is_newey_and_wests() -> None:
    values = NORMAL[:100] - NORMAL[:100].mean()
    # Four lags for 100 days.
    total = sum(value**2 for value in values)
    for lag in range(1, 5):
        total += 2 * (1 - lag / 5) * sum(values[day] * values[day - lag] for day in range(lag, 100))
    assert standard_error(NORMAL[:100]) == pytest.approx(np.sqrt(total / 100 / 100))


def test_many_independent_normal_days_have_the_normal_interval() -> None:
    width = half_width(NORMAL)
    assert width == pytest.approx(1.96 * NORMAL.std() / np.sqrt(2000), rel=0.06)


def test_overlapping_values_are_no_new_observations() -> None:
    monthly = np.convolve(NORMAL, np.ones(20), "valid")
    naive = 1.96 * monthly.std() / np.sqrt(len(monthly))
    assert half_width(monthly, overlap=20) > 3 * naive


def test_constant_has_an_interval_of_no_width_and_two_days_have_none() -> None:
    assert half_width(np.ones(50)) == 0.0
    assert half_width(np.array([1.0, 2.0])) is None


@pytest.mark.parametrize("days", [3, 5, 30])
def test_few_days_give_a_wide_interval(days: int) -> None:
    width = half_width(NORMAL[:days])
    assert width is not None
    assert width > stats.t.ppf(0.975, days - 1) * NORMAL[:days].std() / np.sqrt(days) * 0.5


def test_year_of_clustered_days_is_covered_as_often_as_said() -> None:
    # A forecast that is right about a twentieth of a standard deviation and bets twice that: no better than zero.
    generator, missed = np.random.default_rng(1), np.zeros(2, int)
    for _ in range(400):
        signal, noise = generator.standard_normal(252), clustered(252, generator)
        target, forecast = 0.05 * signal + noise, 0.1 * signal
        naive = target**2
        saved = naive - (target - forecast) ** 2
        value = saved.sum() / naive.sum()
        margin = half_width((saved - value * naive) / naive.mean())
        assert margin is not None
        missed += [value - margin > 0, value + margin < 0]
    # 10 of each are expected; 20 would be the rate of the percentile bootstrap.
    assert missed.max() <= 18
