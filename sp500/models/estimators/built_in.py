"""The built-in estimators, and the types of which their files may consist.

The lists of types are constants of this package. A file, or the run that it lies in, adds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as RidgeRegression

from sp500.config import TrainConfig


def _keep(estimator: Any, stages: int) -> None:
    """Leave an estimator as it is."""


def _accept(estimator: Any) -> None:
    """Accept an estimator of a file whose numbers can do no harm."""


@dataclass(frozen=True)
class Kind:
    """A built-in kind of estimator.

    make: from its settings, those of the training, and whether targets are classes and there are validation windows;
    types: of which its file may consist, in addition to plain data and arrays, as `MODULE.CLASS`; in_float64: whether
    it is fitted in that, whatever the type of the windows; keep: leaves the first stages of those that were fitted;
    check: raises ValueError for a file's estimator whose numbers would lead out of its arrays.
    """

    make: Callable[[Mapping[str, Any], TrainConfig, bool, bool], Any]
    types: frozenset[str]
    in_float64: bool = False
    keep: Callable[[Any, int], None] = _keep
    check: Callable[[Any], None] = _accept


def _make_ridge(settings: Mapping[str, Any], train: TrainConfig, classes: bool, valid: bool) -> RidgeRegression:
    del classes, valid
    return RidgeRegression(alpha=settings["alpha"], random_state=train.seed)


def _make_logistic(settings: Mapping[str, Any], train: TrainConfig, classes: bool, valid: bool) -> LogisticRegression:
    del classes, valid
    return LogisticRegression(C=settings["inverse_penalty"], max_iter=settings["max_iter"], random_state=train.seed)


def _make_hist_gbm(
    settings: Mapping[str, Any], train: TrainConfig, classes: bool, valid: bool
) -> HistGradientBoostingClassifier | HistGradientBoostingRegressor:
    shared = {
        **settings,
        "n_iter_no_change": max(settings["n_iter_no_change"], 1),
        "early_stopping": valid and settings["n_iter_no_change"] > 0,
        "tol": 0.0,
        "random_state": train.seed,
    }
    if classes:
        return HistGradientBoostingClassifier(**shared)
    loss = {"mse": "squared_error", "mae": "absolute_error", "quantile": "quantile"}[train.loss]
    quantile = train.quantile if train.loss == "quantile" else None
    return HistGradientBoostingRegressor(loss=loss, quantile=quantile, **shared)


def _keep_trees(estimator: Any, stages: int) -> None:
    # As if it had been fitted with that many: a test compares them.
    del estimator._predictors[stages:]


def _check_trees(estimator: Any) -> None:
    """Raise ValueError for a tree whose numbers lead out of it: scikit-learn follows them without a look."""
    for tree in (tree for stage in estimator._predictors for tree in stage):
        nodes = tree.nodes
        if nodes.dtype != PREDICTOR_RECORD_DTYPE or nodes.ndim != 1 or not len(nodes):
            raise ValueError("it holds a tree of another form")
        numbers, inner = np.arange(len(nodes)), nodes["is_leaf"] == 0
        # A child has a higher number than its parent, so that no path is endless.
        children = np.stack([nodes["left"], nodes["right"]]).astype(np.int64)[:, inner]
        columns = nodes["feature_idx"].astype(np.int64)[inner]
        inside = (children > numbers[inner]).all() and (children < len(nodes)).all() and (columns >= 0).all()
        if not inside or (columns >= estimator.n_features_in_).any() or nodes["is_categorical"].any():
            raise ValueError("it holds a tree with a branch that leads nowhere")


# Days and columns of prices are alike: the products of float32 windows have no more than a digit or two to spare.
RIDGE = Kind(_make_ridge, frozenset({"sklearn.linear_model._ridge.Ridge"}), in_float64=True)
LOGISTIC = Kind(_make_logistic, frozenset({"sklearn.linear_model._logistic.LogisticRegression"}), in_float64=True)
_BOOSTING, _LOSS = "sklearn.ensemble._hist_gradient_boosting", "sklearn._loss"
HIST_GBM = Kind(
    _make_hist_gbm,
    frozenset(
        {
            f"{_BOOSTING}.gradient_boosting.HistGradientBoostingClassifier",
            f"{_BOOSTING}.gradient_boosting.HistGradientBoostingRegressor",
            f"{_BOOSTING}.binning._BinMapper",
            f"{_BOOSTING}.predictor.TreePredictor",
            "sklearn.preprocessing._label.LabelEncoder",
            *(f"{_LOSS}.link.{link}" for link in ("IdentityLink", "Interval", "LogitLink", "MultinomialLogit")),
            *(f"{_LOSS}.loss.{loss}" for loss in ("AbsoluteError", "HalfSquaredError", "PinballLoss")),
            *(f"{_LOSS}.loss.{loss}" for loss in ("HalfBinomialLoss", "HalfMultinomialLoss")),
        }
    ),
    keep=_keep_trees,
    check=_check_trees,
)
