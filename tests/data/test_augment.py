"""Noisy copies: as wide as asked, the same from anywhere, of training dates alone."""

from __future__ import annotations

import numpy as np
import pytest

from sp500.data import augment
from sp500.data.features import Series

GENERATOR = np.random.default_rng(0)
SCALE = np.array([1.0, 0.01, 100.0])


def series(ticker: str, days: int = 4000) -> Series:
    dates = np.datetime64("2000-01-03") + np.arange(days)
    return Series(ticker, dates, GENERATOR.standard_normal((days, 3)) * SCALE, GENERATOR.standard_normal(days))


TRAIN = [series("AAPL"), series("KO")]


def test_multiplier_counts_the_original_and_its_copies() -> None:
    found = list(augment.copies(TRAIN, 4, noise=0.1, scale=SCALE, seed=0))
    assert [one.ticker for one in found] == ["AAPL", "KO"] * 4
    assert found[0] is TRAIN[0]
    assert found[1] is TRAIN[1]


def test_multiplier_1_is_the_original_alone() -> None:
    assert list(augment.copies(TRAIN, 1, noise=0.1, scale=SCALE, seed=0)) == TRAIN


def test_noise_is_as_wide_as_asked_and_centred() -> None:
    noise = augment.copy(TRAIN[0], 3, noise=0.1, scale=SCALE, seed=0).x - TRAIN[0].x
    np.testing.assert_allclose(noise.std(axis=0), 0.1 * SCALE, rtol=0.05)
    assert (np.abs(noise.mean(axis=0)) < 4 * 0.1 * SCALE / np.sqrt(len(noise))).all()


def test_copy_keeps_dates_and_targets() -> None:
    copy = augment.copy(TRAIN[0], 3, noise=0.1, scale=SCALE, seed=0)
    np.testing.assert_array_equal(copy.dates, TRAIN[0].dates)
    np.testing.assert_array_equal(copy.y, TRAIN[0].y)


def test_any_worker_makes_the_same_copy_without_the_others() -> None:
    among_others = list(augment.copies(TRAIN, 5, noise=0.1, scale=SCALE, seed=3))[2 * 4 + 1]
    alone = augment.copy(TRAIN[1], 4, noise=0.1, scale=SCALE, seed=3)
    np.testing.assert_array_equal(among_others.x, alone.x)


@pytest.mark.parametrize(
    ("ticker", "number", "seed"), [(1, 1, 0), (0, 2, 0), (0, 1, 1)], ids=["ticker", "number", "seed"]
)
def test_noise_differs_between_tickers_copies_and_seeds(ticker: int, number: int, seed: int) -> None:
    base = augment.copy(TRAIN[0], 1, noise=0.1, scale=SCALE, seed=0).x - TRAIN[0].x
    other = augment.copy(TRAIN[ticker], number, noise=0.1, scale=SCALE, seed=seed).x - TRAIN[ticker].x
    correlation = np.corrcoef(base[:, 0], other[:, 0])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(len(base))


def test_no_noise_makes_equal_copies() -> None:
    np.testing.assert_array_equal(augment.copy(TRAIN[0], 1, noise=0.0, scale=SCALE, seed=0).x, TRAIN[0].x)
