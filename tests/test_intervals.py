"""Intervals for means of correlated days: against statsmodels' formula in a loop, known quantiles, and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sp500.intervals import half_width, standard_error
from sp500.metrics import improvement

NORMAL = np.random.default_rng(0).standard_normal(2000)


def clustered(days: int, generator: np.random.Generator) -> np.ndarray:
    """Returns whose volatility follows a GARCH(1,1) with Student-t shocks of 5 degrees of freedom."""
    shocks, returns, variance = generator.standard_t(5, days + 200) / np.sqrt(5 / 3), np.empty(days + 200), 1.0
    for day, shock in enumerate(shocks):
        returns[day] = np.sqrt(variance) * shock
        variance = 0.02 + 0.10 * returns[day] ** 2 + 0.88 * variance
    return returns[200:]


def test_standard_error_is_newey_and_wests():
    values = NORMAL[:100] - NORMAL[:100].mean()
    # Four lags for 100 days.
    total = sum(value**2 for value in values)
    for lag in range(1, 5):
        total += 2 * (1 - lag / 5) * sum(values[day] * values[day - lag] for day in range(lag, 100))
    assert standard_error(NORMAL[:100]) == pytest.approx(np.sqrt(total / 100 / 100))


def test_many_independent_normal_days_have_the_normal_interval():
    width = half_width(NORMAL)
    assert width == pytest.approx(1.96 * NORMAL.std() / np.sqrt(2000), rel=0.06)


def test_overlapping_values_are_no_new_observations():
    monthly = np.convolve(NORMAL, np.ones(20), "valid")
    naive = 1.96 * monthly.std() / np.sqrt(len(monthly))
    assert half_width(monthly, overlap=20) > 3 * naive


def test_constant_has_an_interval_of_no_width_and_two_days_have_none():
    assert half_width(np.ones(50)) == 0.0
    assert half_width(np.array([1.0, 2.0])) is None


def test_slow_statistic_has_60_lags_and_a_quarter_of_the_days_at_most():
    slow = np.convolve(NORMAL, np.ones(40), "valid")
    for days, lags in ((1000, 60), (100, 25)):
        values = slow[:days] - slow[:days].mean()
        weights = np.maximum(1 - np.abs(np.subtract.outer(np.arange(days), np.arange(days))) / (lags + 1), 0)
        error = np.sqrt(values @ weights @ values) / days
        b = (lags + 1) / days
        least = stats.norm.ppf(0.975) + 2.9694 * b + 0.416 * b**2 - 0.5324 * b**3
        width = half_width(slow[:days], slow=True)
        assert width is not None
        assert width >= 0.999 * least * error  # the rest is Student's t
        assert width <= 1.6 * least * error


def test_improvement_that_is_not_zero_is_covered_for_its_own_days():
    # A forecast with a fifth of a standard deviation of skill, in volatility that the test says little of.
    generator, held = np.random.default_rng(1), 0
    for _ in range(200):
        noise, signal = clustered(252, generator), generator.standard_normal(252)
        held += covers_its_days(noise, 0.2 * signal)
    assert held >= 182  # 190 expected


def covers_its_days(noise: np.ndarray, forecast: np.ndarray) -> bool:
    gain = improvement(noise**2, (forecast + noise) ** 2, np.arange(len(noise)))
    # With the signs of the noise unknown, the loss saved is the forecast's square, in expectation.
    return gain["low"] <= (forecast**2).sum() / (forecast**2 + noise**2).sum() <= gain["high"]


@pytest.mark.parametrize("days", [3, 5, 30])
def test_few_days_give_a_wide_interval(days):
    width = half_width(NORMAL[:days])
    assert width is not None
    assert width > stats.t.ppf(0.975, days - 1) * NORMAL[:days].std() / np.sqrt(days) * 0.5


def test_year_of_clustered_days_is_covered_as_often_as_said():
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
