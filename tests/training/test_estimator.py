"""Estimators in the place of networks: the loop's kind of result from one call of `fit`, in every arm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
import your_own
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from skops_files import attacks, edit

import sp500
from sp500 import Predictor, formatting
from sp500.config import RunConfig
from sp500.data.windows import Windows
from sp500.errors import CheckpointError, ConfigError, DataError
from sp500.models.estimators import storage
from sp500.plugins import admission
from sp500.report.terminal import text
from sp500.runs import checksums, versions
from sp500.runs.store import Run, RunStore
from sp500.tasks import catalog
from sp500.training import estimator
from sp500.training.recipe import Recipe

DATA: dict[str, Any] = {"tickers": ["KO", "JPM"], "start": "2014-01-01", "window": 10}
TREES: dict[str, Any] = {"kind": "hist_gbm", "max_iter": 30, "n_iter_no_change": 5}
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "lightgbm_trees.py"
OWN = """
import numpy as np
from sklearn.linear_model import Lasso
from sklearn.neighbors import KNeighborsClassifier


def lasso(config, dataset, *, alpha=0.05):
    return Lasso(alpha=alpha, selection="random")


def neighbours(config, dataset):
    return KNeighborsClassifier(50)


class Mean:
    def __init__(self, config, dataset, *, forget=False):
        self.mean, self.forget = None, forget

    def fit(self, X, y, X_valid=None, y_valid=None):
        self.mean = float(np.concatenate([y, y_valid]).mean())

    def predict(self, X):
        return np.full(len(X), self.mean)

    def save(self, folder):
        with open(folder + "/mean.txt", "w") as file:
            file.write(repr(0.0 if self.forget else self.mean))

    def load(self, folder):
        with open(folder + "/mean.txt") as file:
            self.mean = float(file.read())


class Unsaved:
    def __init__(self, config, dataset):
        pass

    def fit(self, X, y):
        pass

    def predict(self, X):
        return X[:, 0]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.setattr(admission, "_given", set())
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    shutil.copy(EXAMPLE, "lightgbm_trees.py")
    your_own.write(tmp_path)


def arrays(part: Windows) -> np.ndarray:
    """Windows side by side, one by one."""
    return np.stack([part.rows[start : start + part.length].ravel() for start in part.starts])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ridge_forecasts_as_scikit_learns_on_the_same_windows(dtype):
    record = sp500.train(name="one", data=DATA, model={"kind": "ridge", "alpha": 3.0}, train={"dtype": dtype})
    config = RunConfig(data=DATA, train={"dtype": dtype})
    data = catalog.task(config).prepare(config)
    assert data.valid is not None
    reference = Ridge(alpha=3.0).fit(arrays(data.train).astype(np.float64), data.train.targets.astype(np.float64))
    expected = reference.predict(arrays(data.test)) * data.target_scale
    forecast = pd.read_parquet("runs/one/predictions.parquet")["forecast"]
    np.testing.assert_allclose(forecast, expected, atol=1e-8)
    error = np.mean((reference.predict(arrays(data.valid)) - data.valid.targets) ** 2)
    [epoch] = RunStore(Path("runs")).epochs("one")
    assert record.best_loss == epoch.valid_loss == pytest.approx(error, abs=1e-6)
    assert record.untrained_loss == pytest.approx(np.mean((data.naive_output - data.valid.targets) ** 2), abs=1e-6)
    assert (record.stages, record.best_epoch, record.samples) == (1, 1, len(data.train))
    assert "patience" not in text(record.record, Path("runs"))


def test_logistic_gives_scikit_learns_probabilities():
    sp500.train(name="one", task="direction", data=DATA, model={"kind": "logistic", "inverse_penalty": 0.1})
    config = RunConfig(task="direction", data=DATA)
    data = catalog.task(config).prepare(config)
    x = arrays(data.train).astype(np.float64)
    fitted = LogisticRegression(C=0.1, max_iter=1000).fit(x, data.train.targets.astype(int))
    forecast = pd.read_parquet("runs/one/predictions.parquet")["forecast"]
    np.testing.assert_allclose(forecast, fitted.predict_proba(arrays(data.test))[:, 1], atol=1e-5)


def test_trees_stop_by_the_validation_windows_and_the_best_are_used():
    record = sp500.train(name="one", data=DATA, model=TREES, train={"seed": 2})
    config = RunConfig(data=DATA)
    data = catalog.task(config).prepare(config)
    assert data.valid is not None
    x, y = arrays(data.train), data.train.targets
    fitted = HistGradientBoostingRegressor(max_iter=30, early_stopping=False, random_state=2).fit(x, y)
    errors = [np.mean((answer - data.valid.targets) ** 2) for answer in fitted.staged_predict(arrays(data.valid))]
    scores = [np.mean((y.mean() - data.valid.targets) ** 2), *errors]
    ended = next(last for last in range(5, 31) if last == 30 or min(scores[last - 4 : last + 1]) >= scores[last - 5])
    best = int(np.argmin(errors[:ended])) + 1
    assert (record.stages, record.best_epoch) == (ended, best)
    assert record.best_loss == pytest.approx(errors[best - 1], rel=1e-6)
    assert [epoch.valid_loss for epoch in RunStore(Path("runs")).epochs("one")] == pytest.approx(
        errors[: record.stages], rel=1e-6
    )
    assert f"{record.stages} stages were fitted, and the first {best} are used" in text(record.record, Path("runs"))


@pytest.mark.parametrize(
    ("task", "model", "train"),
    [
        ("returns", {"kind": "ridge"}, {"refit": True}),
        ("returns", TREES, {"refit": True}),
        ("returns", TREES, {"loss": "quantile", "quantile": 0.9, "dtype": "float64"}),
        ("direction", TREES, {}),
        ("synthetic", TREES, {}),
        ("returns", {"kind": "lightgbm_trees.py:Trees", "options": {"rounds": 20}}, {"refit": True}),
        ("returns", {"kind": "own.py:lasso"}, {"seed": 4}),
        ("returns", {"kind": "forest.py:forest", "options": {"trees": 5}}, {}),
        ("returns", {"kind": "own.py:Mean"}, {}),
        ("direction", {"kind": "own.py:neighbours"}, {}),
    ],
)
def test_run_is_judged_again_to_the_same_numbers(task, model, train):
    data = {} if task == "synthetic" else {"data": DATA}
    record = sp500.train(name="one", task=task, model=model, train=train, **data)
    again = sp500.train(name="two", task=task, model=model, train=train, **data)
    assert again.metrics == record.metrics
    Path("runs").rename("elsewhere")
    kept = json.loads(record.record.model_dump_json())["metrics"]
    assert json.loads(json.dumps(Predictor("elsewhere/one").judge())) == kept
    assert [*versions.check(Path("elsewhere/one/checkpoints/best")).files] == [
        "trees.txt" if "Trees" in model["kind"] else "mean.txt" if "Mean" in model["kind"] else storage.FILE
    ]


def test_seed_is_the_random_state_of_an_estimator_of_the_users():
    lasso: dict[str, Any] = {"data": DATA, "model": {"kind": "own.py:lasso"}}
    sp500.train(name="one", train={"seed": 4}, **lasso)
    assert Predictor("runs/one").model.estimator.random_state == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": {"kind": "ridge"}, "train": {"lr": 0.1}}, "train.lr 0.1 is not used by model.kind ridge"),
        ({"model": TREES, "train": {"epochs": 3}}, "train.epochs 3 is not used by model.kind hist_gbm"),
        ({"model": TREES, "train": {"batch_size": 3}}, "train.batch_size 3 is not used"),
        ({"model": {"kind": "own.py:lasso"}, "train": {"clip": 0.5}}, "train.clip 0.5 is not used by model.kind lasso"),
        ({"model": TREES, "train": {"loss": "huber"}}, "train.loss huber is not minimised by model.kind hist_gbm"),
        ({"model": {"kind": "ridge"}, "task": "direction"}, "ridge forecasts numbers, and the targets"),
        ({"model": {"kind": "logistic"}}, "logistic forecasts classes, and the targets"),
        ({"model": {"kind": "ridge"}, "num_workers": 2}, "num_workers: model.kind ridge is fitted once on all"),
        ({"model": {"kind": "own.py:Mean"}, "num_workers": 2}, "num_workers: model.kind Mean is fitted once on all"),
        ({"model": {"kind": "own.py:Mean"}, "task": "direction"}, "Mean has no predict_proba"),
        ({"model": {"kind": "own.py:Unsaved"}}, "Unsaved is an estimator of your own and has no method save; add"),
        ({"model": {"kind": "mlp", "alpha": 2.0}}, "model.alpha is not used by model.kind mlp, only by ridge"),
    ],
)
def test_setting_that_an_estimator_does_not_use_is_refused_by_name(settings, said):
    with pytest.raises(ConfigError, match=said):
        sp500.train(data=DATA, **settings)


@pytest.mark.parametrize("arms", [["in_memory", "streaming"], ["ray"]])
def test_scale_of_an_estimator_has_the_arm_in_memory_only(arms):
    with pytest.raises(ConfigError, match=r"arms: model\.kind ridge .* use --arms in_memory"):
        sp500.scale(model={"kind": "ridge"}, arms=arms)


def test_files_that_do_not_hold_all_of_an_estimator_end_its_run():
    with pytest.raises(DataError, match="Mean: the predictions differ after save and load"):
        sp500.train(data=DATA, model={"kind": "own.py:Mean", "options": {"forget": True}})


def test_windows_that_do_not_fit_memory_are_refused_with_their_bytes(monkeypatch):
    monkeypatch.setattr(estimator, "total_bytes", lambda: 10**6)
    record = sp500.train(data=DATA, model={"kind": "ridge"})
    windows = RunConfig(data=DATA)
    data = catalog.task(windows).prepare(windows)
    count = len(data.train)
    assert record.status == "out_of_memory"
    assert f"{count:,} windows as arrays need {formatting.size(count * 10 * data.features * 4 * 5)}," in record.reason


def seal(run: Path) -> None:
    """Make all hashes of a run right again, as its sender would."""
    version = (run / "checkpoints" / "best").resolve()
    manifest = versions.read(version)
    files = {name: versions.digest((version / name).read_bytes()) for name in manifest.files}
    (version / versions.MANIFEST).write_text(versions.Manifest(manifest.fingerprint, manifest.progress, files).dump())
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["weights_sha256"] = estimator.hash_files(version)
    del recipe["sha256"]
    (run / "recipe.json").write_text(checksums.seal(Recipe.model_validate(recipe)))


@pytest.mark.parametrize("kind", ["ridge", "logistic", "hist_gbm", "own"])
def test_file_of_a_foreign_run_runs_nothing_though_all_its_hashes_are_right(kind):
    model = {"kind": "own.py:lasso" if kind == "own" else kind}
    sp500.train(name="one", task="direction" if kind == "logistic" else "returns", data=DATA, model=model)
    version, mark = Path("runs/one/checkpoints/best").resolve(), Path("mark").absolute()
    whole = (version / storage.FILE).read_bytes()
    for name, attack in attacks(mark).items():
        if kind == "own" and name.startswith("an"):
            continue  # of the package that the user's own code names
        (version / storage.FILE).write_bytes(whole)
        edit(version, lambda schema, attack=attack: schema["content"]["content"].update(n_features_in_=attack))
        seal(Path("runs/one"))
        with pytest.raises(CheckpointError, match="not loaded"):
            Predictor("runs/one")
    assert not mark.exists()
    (version / storage.FILE).write_bytes(whole)
    seal(Path("runs/one"))
    Predictor("runs/one")


def test_file_of_another_kind_is_refused():
    sp500.train(name="ridge", data=DATA, model={"kind": "ridge"})
    sp500.train(name="trees", data=DATA, model=TREES)
    files = {name: Path(f"runs/{name}/checkpoints/best/{storage.FILE}") for name in ("ridge", "trees")}
    shutil.copy(files["ridge"], files["trees"])
    with pytest.raises(CheckpointError, match="does not hold the weights of"):
        Predictor("runs/trees")
    seal(Path("runs/trees"))
    with pytest.raises(CheckpointError, match=r"holds sklearn\.linear_model\._ridge\.Ridge"):
        Predictor("runs/trees")


def test_file_of_a_kind_of_the_same_types_is_refused():
    for name, task in (("one", "returns"), ("two", "direction")):
        sp500.train(name=name, task=task, data=DATA, model=TREES)
    shutil.copy(*(f"runs/{name}/checkpoints/best/{storage.FILE}" for name in ("two", "one")))
    seal(Path("runs/one"))
    with pytest.raises(CheckpointError, match="holds HistGradientBoostingClassifier, and the run is of"):
        Predictor("runs/one")


def test_foreign_estimator_is_loaded_after_the_trust_question_only(tmp_path, monkeypatch):
    sp500.train(name="one", data=DATA, model={"kind": "own.py:lasso"})
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "other" / "own-sources")
    monkeypatch.setattr(admission, "_given", set())
    with pytest.raises(ConfigError, match="add --trust-source"):
        Predictor("runs/one")
    Predictor("runs/one", trust_source=True)


def test_walk_forward_fits_each_fold():
    record = sp500.walk_forward(name="one", data=DATA, model=TREES, folds=2)
    assert record.folds is not None
    assert [row["status"] for row in record.folds] == ["ok", "ok"]
    assert all(row["epochs"] >= row["best_epoch"] >= 1 for row in record.folds)
    own = sp500.walk_forward(name="two", data=DATA, model={"kind": "own.py:lasso"}, folds=2)
    assert own.folds is not None
    assert [row["best_epoch"] for row in own.folds] == [1, 1]


def test_scale_fits_windows_in_memory():
    record = sp500.scale(name="one", data=DATA, model={"kind": "ridge"}, arms=["in_memory"], multipliers=[1, 3])
    assert record.scale is not None
    assert [row["status"] for row in record.scale] == ["ok", "ok"]
    windows = [row["windows"] for row in record.scale]
    assert windows[1] == 3 * windows[0]
    alone = sp500.train(name="alone", data=DATA, model={"kind": "ridge"})
    assert record.scale[0]["test_error"] == pytest.approx(alone.metrics["test"]["mse"], rel=1e-6)


@pytest.mark.parametrize(("mode", "stop"), [("sequential", "asha"), ("packed", "none"), ("ray", "median")])
def test_search_of_twelve_finds_the_same_in_every_mode(mode, stop, ray_cluster):
    """Estimators are fitted at once, so a stopper ends none."""
    space = {"model.max_leaf_nodes": [4, 8, 16], "model.learning_rate": [0.05, 0.2], "model.l2_regularization": [0, 1]}
    Path("space.yaml").write_text(yaml.safe_dump(space))
    model = {**TREES, "max_iter": 10}
    record = sp500.search(name=mode, mode=mode, stop=stop, space="space.yaml", data=DATA, model=model)
    assert record.search is not None
    assert (record.search["configs"], record.search["failed"], record.search.get("stopped", {})) == (12, 0, {})
    assert record.search["best"] == BEST.setdefault("best", record.search["best"])
    assert Predictor(f"runs/{mode}").judge() == record.metrics


BEST: dict[str, Any] = {}
"""Of the mode that ran first."""


def test_search_leaves_settings_that_only_networks_have_out_of_an_estimators_trial():
    space = {"model.kind": ["ridge", "linear"], "model.alpha": [1.0, 10.0], "train.lr": [0.001, 0.01]}
    Path("space.yaml").write_text(yaml.safe_dump(space))
    record = sp500.search(name="one", mode="packed", space="space.yaml", data=DATA, train={"epochs": 25})
    assert record.search is not None
    assert (record.search["configs"], record.search["failed"]) == (4, 0)


def test_run_that_was_stopped_before_its_record_is_fitted_again():
    record = sp500.train(name="one", data=DATA, model={"kind": "ridge"})
    Path("runs/one/record.json").unlink()
    again = sp500.train(name="one", data=DATA, model={"kind": "ridge"}, resume=True)
    assert again.metrics == record.metrics
    assert len(RunStore(Path("runs")).epochs("one")) == 1
    assert Run(Path("runs/one")).record() == again.record
