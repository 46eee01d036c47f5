"""Estimators: the same numbers as scikit-learn's own, and files from which nothing but their own types is loaded."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import pytest
import sklearn
import skops.io
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skops_files import attacks, edit, plain

from sp500.config import TrainConfig
from sp500.errors import CheckpointError, DataError
from sp500.models.estimators import built_in, network, storage

RIDGE = storage.Allowed(types=built_in.RIDGE.types)
HIST_GBM = storage.Allowed(types=built_in.HIST_GBM.types)
OWN = storage.Allowed(packages=frozenset({"sklearn"}))
TREES = {"max_iter": 40, "n_iter_no_change": 5, "max_features": 0.5}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 12))
    return x, x[:, 0] - 0.5 * x[:, 3] * x[:, 4] + rng.normal(size=600)


def test_trees_that_are_kept_forecast_as_those_fitted_with_so_many(data):
    x, y = data
    settings = {**TREES, "learning_rate": 0.1, "max_leaf_nodes": 8, "min_samples_leaf": 20, "l2_regularization": 0.0}
    kept = built_in.HIST_GBM.make(settings, TrainConfig(seed=3), False, True)
    network.fit(kept, x[:400], y[:400], (x[400:], y[400:]))
    assert 7 < kept.n_iter_ < 40
    built_in.HIST_GBM.keep(kept, 7)
    again = HistGradientBoostingRegressor(
        max_iter=7, max_features=0.5, max_leaf_nodes=8, early_stopping=False, random_state=3
    )
    np.testing.assert_array_equal(kept.predict(x), again.fit(x[:400], y[:400]).predict(x))


@pytest.mark.parametrize("classes", [2, 3])
def test_outputs_of_classes_are_the_logits_of_the_probabilities(data, classes):
    x, y = data
    labels = np.digitize(y, [0.0] if classes == 2 else [-0.5, 0.5])
    fitted = LogisticRegression().fit(x, labels)
    outputs = 1 if classes == 2 else 3
    logits = network.FittedEstimator(fitted, classes=True, outputs=outputs)(torch.from_numpy(x)[:, None])
    given = torch.sigmoid(logits) if classes == 2 else torch.softmax(logits, 1)
    expected = fitted.predict_proba(x)[:, -1:] if classes == 2 else fitted.predict_proba(x)
    np.testing.assert_allclose(given, expected, rtol=1e-10)


def test_class_that_was_not_seen_has_the_least_probability(data):
    x, y = data
    fitted = LogisticRegression().fit(x, np.where(y > 0, 2, 0))
    logits = network.FittedEstimator(fitted, classes=True, outputs=4)(torch.from_numpy(x))
    assert logits.shape == (600, 4)
    assert set(logits.argmax(1).tolist()) == {0, 2}
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (Ridge, RIDGE),
        (LogisticRegression, storage.Allowed(types=built_in.LOGISTIC.types)),
        *((functools.partial(HistGradientBoostingRegressor, loss=loss, quantile=0.5), HIST_GBM)
          for loss in ("squared_error", "absolute_error", "quantile")),
        (lambda: HistGradientBoostingClassifier(early_stopping=True), HIST_GBM),
        (lambda: make_pipeline(Lasso()), OWN),
        (lambda: RandomForestRegressor(3), OWN),
    ],
)  # fmt: skip
def test_file_holds_all_of_an_estimator(data, tmp_path, make, allowed):
    x, y = data
    estimator = make()
    of_classes = hasattr(estimator, "predict_proba")
    estimator.fit(x, np.digitize(y, [-0.5, 0.5]) if of_classes else y)
    storage.save(estimator, tmp_path, allowed)
    again = storage.load(tmp_path, allowed)
    np.testing.assert_array_equal(again.predict(x), estimator.predict(x))
    if allowed is HIST_GBM:
        built_in.HIST_GBM.check(again)


ATTACKS = list(attacks(Path("mark")))
NAMED = {"another estimator", "an object of a package"}
"""Of a package that the user's own code names, so that its types are admitted."""


@pytest.mark.parametrize(
    ("allowed", "attack"),
    [*((RIDGE, attack) for attack in ATTACKS), *((OWN, attack) for attack in ATTACKS if attack not in NAMED)],
)
@pytest.mark.parametrize("whole", [True, False])
def test_file_with_another_type_is_refused_and_nothing_runs(tmp_path, data, allowed, attack, whole):
    storage.save(Ridge().fit(*data), tmp_path, allowed)
    bad = attacks(tmp_path / "mark")[attack]
    if whole:
        edit(tmp_path, lambda schema: schema.update(bad))
    else:
        edit(tmp_path, lambda schema: schema["content"]["content"].update(intercept_=bad))
    with pytest.raises(CheckpointError, match="not loaded"):
        storage.load(tmp_path, allowed)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("attack", ["builtins.eval", "os.system"])
def test_attack_leaves_its_mark_where_a_reader_trusts_the_types_of_the_file(tmp_path, data, attack):
    """Else the test above would prove nothing."""
    storage.save(Ridge().fit(*data), tmp_path, RIDGE)
    edit(tmp_path, lambda schema: schema.update(attacks(tmp_path / "mark")[attack]))
    skops.io.load(tmp_path / storage.FILE, trusted=skops.io.get_untrusted_types(file=tmp_path / storage.FILE))
    assert (tmp_path / "mark").exists()


def test_function_of_a_package_is_no_part_of_an_estimator(tmp_path, data):
    with pytest.raises(DataError, match="write save"):
        storage.save(make_pipeline(FunctionTransformer(os.path.join), Ridge()), tmp_path, OWN)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "value"), [("left", 10**6), ("right", 0), ("feature_idx", 12), ("feature_idx", -1), ("is_categorical", 1)]
)
def test_tree_that_leads_out_of_its_arrays_is_refused(data, field, value):
    estimator = HistGradientBoostingRegressor(max_iter=2).fit(*data)
    built_in.HIST_GBM.check(estimator)
    nodes = estimator._predictors[1][0].nodes
    nodes[field][np.flatnonzero(nodes["is_leaf"] == 0)[-1]] = value
    with pytest.raises(ValueError, match="leads nowhere"):
        built_in.HIST_GBM.check(estimator)


def test_file_of_another_scikit_learn_says_both_versions(tmp_path, data, caplog):
    estimator = Ridge().fit(*data)
    storage.save(estimator, tmp_path, RIDGE)
    edit(tmp_path, lambda schema: schema["content"]["content"].update(_sklearn_version=plain("1.4.0")))
    np.testing.assert_array_equal(storage.load(tmp_path, RIDGE).predict(data[0]), estimator.predict(data[0]))
    assert f"of scikit-learn 1.4.0, and {sklearn.__version__} is installed" in caplog.text


@pytest.mark.parametrize("data_of_file", [b"", b"no zip"])
def test_damaged_file_is_named(tmp_path, data_of_file):
    (tmp_path / storage.FILE).write_bytes(data_of_file)
    with pytest.raises(CheckpointError, match="cannot be read"):
        storage.load(tmp_path, RIDGE)
