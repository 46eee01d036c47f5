"""Noisy copies: as wide as asked, the same from anywhere, of training dates alone."""

from __future__ import annotations

import numpy as np
import pytest

from sp500.data import augment
from sp500.data.augment import Augmentation
from sp500.data.features import Series, features
from sp500.data.prices import Prices
from sp500.errors import DataError

GENERATOR = np.random.default_rng(0)
SCALE = np.array([1.0, 0.01, 100.0])


def series(ticker: str, days: int = 4000) -> Series:
    dates = np.datetime64("2000-01-03") + np.arange(days)
    return Series(ticker, dates, GENERATOR.standard_normal((days, 3)) * SCALE, GENERATOR.standard_normal(days))


def how(method: str = "noise", noise: float = 0.1, jitter: float = 0.0, seed: int = 0) -> Augmentation:
    return Augmentation(method, noise, jitter, SCALE, seed)


TRAIN = [series("AAPL"), series("KO")]


def test_multiplier_counts_the_original_and_its_copies():
    found = list(augment.copies(TRAIN, 4, how()))
    assert [one.ticker for one in found] == ["AAPL", "KO"] * 4
    assert found[0] is TRAIN[0]
    assert found[1] is TRAIN[1]


def test_multiplier_1_is_the_original_alone():
    assert list(augment.copies(TRAIN, 1, how())) == TRAIN


def test_noise_is_as_wide_as_asked_and_centred():
    noise = augment.copy(TRAIN[0], 3, how()).x - TRAIN[0].x
    np.testing.assert_allclose(noise.std(axis=0), 0.1 * SCALE, rtol=0.05)
    assert (np.abs(noise.mean(axis=0)) < 4 * 0.1 * SCALE / np.sqrt(len(noise))).all()


def test_copy_keeps_dates_and_targets():
    copy = augment.copy(TRAIN[0], 3, how())
    np.testing.assert_array_equal(copy.dates, TRAIN[0].dates)
    np.testing.assert_array_equal(copy.y, TRAIN[0].y)


def test_any_worker_makes_the_same_copy_without_the_others():
    among_others = list(augment.copies(TRAIN, 5, how(seed=3)))[2 * 4 + 1]
    alone = augment.copy(TRAIN[1], 4, how(seed=3))
    np.testing.assert_array_equal(among_others.x, alone.x)


@pytest.mark.parametrize(
    ("ticker", "number", "seed"), [(1, 1, 0), (0, 2, 0), (0, 1, 1)], ids=["ticker", "number", "seed"]
)
def test_noise_differs_between_tickers_copies_and_seeds(ticker, number, seed):
    base = augment.copy(TRAIN[0], 1, how()).x - TRAIN[0].x
    other = augment.copy(TRAIN[ticker], number, how(seed=seed)).x - TRAIN[ticker].x
    correlation = np.corrcoef(base[:, 0], other[:, 0])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(len(base))


def test_no_noise_makes_equal_copies():
    np.testing.assert_array_equal(augment.copy(TRAIN[0], 1, how(noise=0.0)).x, TRAIN[0].x)


def test_jitter_scales_each_feature_of_a_copy_by_one_factor():
    ratio = augment.copy(TRAIN[0], 2, how(noise=0.0, jitter=0.1)).x / TRAIN[0].x
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape))
    assert len(set(ratio[0])) == 3
    np.testing.assert_allclose(ratio[0], 1.0, atol=0.5)


@pytest.fixture(scope="module")
def index(bundled: Prices) -> Series:
    return features(bundled).series[0]


def test_bootstrap_copy_is_a_path_of_the_series_own_returns(index):
    copy = augment.copy(index, 1, how("bootstrap"))
    assert copy.x.shape == index.x.shape
    # Each daily return is one of the original's; five-day momentum is the sum of five of them; targets follow.
    own = np.sort(index.x[:, 0])
    nearest = own[np.clip(np.searchsorted(own, copy.x[:, 0]), 0, len(own) - 1)]
    below = own[np.clip(np.searchsorted(own, copy.x[:, 0]) - 1, 0, len(own) - 1)]
    assert np.minimum(abs(nearest - copy.x[:, 0]), abs(below - copy.x[:, 0])).max() < 1e-10
    np.testing.assert_allclose(copy.x[4:, 1], np.convolve(copy.x[:, 0], np.ones(5), "valid"), atol=1e-10)
    np.testing.assert_allclose(copy.y[:-1], copy.x[1:, 0], atol=1e-12)
    assert np.isfinite(copy.y).all()


def test_bootstrap_keeps_blocks_together(index):
    copy = augment.copy(index, 1, how("bootstrap")).x[:, 0]
    place = {round(value, 12): row for row, value in enumerate(index.x[:, 0])}
    rows = np.array([place.get(round(value, 12), -9) for value in copy])
    # Blocks have a mean length of 20 days, so 19 in 20 days follow the day before them.
    assert np.mean(np.diff(rows) == 1) == pytest.approx(0.95, abs=0.03)


def test_bootstrap_needs_closing_prices_alone():
    with pytest.raises(DataError, match="bootstrap"):
        augment.copy(TRAIN[0], 1, how("bootstrap"))
