"""The smoke job: the same set anywhere, with an answer that is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.tasks import catalog
from sp500.training.loop import fit
from sp500.training.task import Traded
from sp500.training.worker import SoloWorker


def settings(*, seed: int = 0, epochs: int = 10, dtype: str = "float32", **synthetic: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "task": "synthetic",
            "data": {"seed": seed},
            "synthetic": synthetic,
            "model": {"kind": "linear"},
            "train": {"epochs": epochs, "lr": 0.01, "batch_size": 128, "dtype": dtype},
        }
    )


def made(config: RunConfig) -> Dataset:
    return catalog.task(config).prepare(config)


def test_every_worker_makes_the_same_set_whatever_was_drawn_before():
    found = []
    for drawn in (1, 2):
        np.random.seed(drawn)
        torch.manual_seed(drawn)
        found.append(made(settings()))
    for name in ("train", "valid", "test"):
        first, second = (getattr(dataset, name) for dataset in found)
        np.testing.assert_array_equal(first.rows, second.rows)
        np.testing.assert_array_equal(first.targets, second.targets)


def test_other_seed_makes_another_set():
    assert not np.array_equal(made(settings()).train.rows, made(settings(seed=1)).train.rows)


@pytest.mark.parametrize("samples", [10, 11, 100, 4096])
def test_parts_hold_every_sample_once(samples):
    dataset = made(settings(samples=samples, features=5))
    assert dataset.valid is not None
    parts = [dataset.train, dataset.valid, dataset.test]
    assert sum(map(len, parts)) == samples
    assert min(map(len, parts)) >= 1
    assert len(np.unique(np.concatenate([part.rows for part in parts]), axis=0)) == samples
    assert all(len(part.rows) == len(part.starts) == len(part) for part in parts)


def test_set_has_the_shape_and_number_type_asked_for():
    dataset = made(settings(samples=1000, features=7, classes=3, dtype="float64"))
    assert dataset.features == 7
    assert dataset.train.rows.dtype == np.float64
    assert set(dataset.train.targets) == {0, 1, 2}


def test_classes_are_clusters_at_three_noise_deviations_from_the_origin():
    train = made(settings(samples=30_000, features=16)).train
    for number in range(4):
        rows = train.rows[train.targets == number].astype(np.float64)
        assert np.linalg.norm(rows.mean(axis=0)) == pytest.approx(3.0, abs=0.1)
        np.testing.assert_allclose(rows.std(axis=0), 1.0, atol=0.05)


def test_trained_model_comes_near_the_best_possible_accuracy():
    config = settings()
    task, dataset = catalog.task(config), made(config)
    result = fit(task, dataset, config, SoloWorker(torch.device("cpu")))
    found = task.judge(result.outputs, dataset)
    best = found["test"]["best_possible_accuracy"]
    assert 0.9 * best < found["test"]["accuracy"] <= best + 0.02
    assert found["test"]["accuracy"] == accuracy_score(dataset.test.targets, result.outputs["test"].argmax(axis=1))
    assert found["naive"]["majority"]["accuracy"] < 0.5 * best


def test_best_possible_accuracy_is_what_a_discriminant_learns_from_many_samples():
    config = settings(samples=30_000, features=16)
    task, dataset = catalog.task(config), made(config)
    learnt = LinearDiscriminantAnalysis().fit(dataset.train.rows, dataset.train.targets)
    empty = {name: np.zeros((len(getattr(dataset, name)), 4)) for name in ("valid", "test")}
    best = task.judge(empty, dataset)["test"]["best_possible_accuracy"]
    assert learnt.score(dataset.test.rows, dataset.test.targets) == pytest.approx(best, abs=0.01)


def test_majority_class_is_that_of_training():
    config = settings(samples=50, features=5)
    task, dataset = catalog.task(config), made(config)
    empty = {name: np.zeros((len(getattr(dataset, name)), 4)) for name in ("valid", "test")}
    majority = np.bincount(dataset.train.targets).argmax()
    found = task.judge(empty, dataset)["naive"]["majority"]["accuracy"]
    assert found == pytest.approx((dataset.test.targets == majority).mean())


def test_loss_is_the_sum_of_cross_entropies():
    generator = np.random.default_rng(0)
    scores, target = generator.standard_normal((20, 4)), generator.integers(4, size=20)
    likelihood = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(likelihood[np.arange(20), target]).sum()
    loss = catalog.task(settings()).loss(torch.from_numpy(scores), torch.from_numpy(target))
    assert loss.item() == pytest.approx(expected)


def test_predictions_are_class_numbers():
    config = settings(samples=100, features=5)
    task, dataset = catalog.task(config), made(config)
    scores = np.eye(4)[dataset.test.targets]
    table = task.predictions(scores, dataset.test, dataset)
    assert (table["forecast"] == table["target"]).all()
    assert dataset.outputs == 4


def test_clusters_are_not_traded():
    assert not isinstance(catalog.task(settings()), Traded)
