"""Normaliser: scikit-learn's scalers, fitted on training rows alone."""

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from sp500.data import normalize

TRAIN = np.random.default_rng(0).normal([5, -3, 1e6], [0.01, 2, 1e3], (500, 3))
LATER = TRAIN * 1.5


@pytest.mark.parametrize(("norm", "reference"), [("zscore", StandardScaler()), ("minmax", MinMaxScaler((-1, 1)))])
def test_scaled_values_equal_scikit_learns(norm, reference):
    scaler, reference = normalize.fit(TRAIN, norm), reference.fit(TRAIN)
    for values in (TRAIN, LATER):
        np.testing.assert_allclose(scaler(values), reference.transform(values), rtol=1e-9, atol=1e-9)


def test_no_norm_leaves_values_as_they_are():
    np.testing.assert_array_equal(normalize.fit(TRAIN, "none")(LATER), LATER)


@pytest.mark.parametrize("norm", ["zscore", "minmax"])
@pytest.mark.parametrize("constant", [0.0, 5.0, 0.1, -3584472.97, 49128517509.57])
def test_feature_that_never_changes_keeps_scale_1(norm, constant):
    train = np.full((100, 1), constant)
    scaler = normalize.fit(train, norm)
    assert scaler.scale.tolist() == [1.0]
    np.testing.assert_allclose(scaler(train), 0.0, atol=1e-3)


@pytest.mark.parametrize("norm", ["zscore", "minmax"])
def test_scaling_takes_any_leading_axes(norm):
    scaler = normalize.fit(TRAIN, norm)
    np.testing.assert_array_equal(scaler(TRAIN.reshape(50, 10, 3)), scaler(TRAIN).reshape(50, 10, 3))


def test_feature_that_begins_to_vary_after_training_is_reported_by_name_and_part():
    train = np.random.default_rng(0).normal(0, [1, 0, 1], (500, 3))
    later = np.random.default_rng(1).normal(0, [1.5, 1, 4], (500, 3))
    first, second = normalize.shift_notes(("usual", "constant", "wide"), train, {"test": later})
    assert "constant is not constant" in first
    assert "wide is 4" in second
    assert "test dates" in first
    assert normalize.shift_notes(("usual", "constant", "wide"), train, {"valid": train}) == []
