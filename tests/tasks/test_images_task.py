"""Images as a task: how the network sees pixels, what it is compared with, and what the settings refuse."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.images.dataset import channel_statistics
from sp500.data.windows import Dataset
from sp500.errors import ConfigError
from sp500.models.dropout import Source
from sp500.tasks import catalog, images
from sp500.tasks.images import Pixels
from sp500.training.loop import fit
from sp500.training.worker import SoloWorker

CONFIG = RunConfig(
    task="images", model=ModelConfig(kind="cnn", hidden=16), train=TrainConfig(epochs=4, lr=3e-3, batch_size=64)
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return catalog.task(CONFIG).prepare(CONFIG)


def test_digits_are_learned_and_judged_next_to_naive_classifiers(digits):
    task = catalog.task(CONFIG)
    found = task.judge(fit(task, digits, CONFIG, SoloWorker(torch.device("cpu"))).outputs, digits)
    assert found["test"]["accuracy"] > 0.85
    assert np.array(found["test"]["confusion_matrix"]).sum() == len(digits.test) == 269
    accuracies = {name: one["accuracy"] for name, one in found["naive"].items()}
    assert accuracies == {
        "majority": pytest.approx(0.097, abs=0.001),
        "logistic": pytest.approx(0.900, abs=0.004),
        "nearest": pytest.approx(0.944, abs=0.001),
    }
    assert found["test"]["improvement"]["over"] == "nearest"
    wrong, naive_wrong = 1 - found["test"]["accuracy"], 1 - accuracies["nearest"]
    assert found["test"]["improvement"]["value"] == pytest.approx(1 - wrong / naive_wrong)


def test_naive_classifiers_know_all_that_comes_before_the_test(digits):
    rows = np.concatenate([digits.train.rows, digits.valid.rows]).reshape(-1, 64)
    labels = np.concatenate([digits.train.targets, digits.valid.targets])
    expected = KNeighborsClassifier(1).fit(rows, labels).predict(digits.test.rows.reshape(-1, 64))
    assert np.array_equal(images.naive(digits)["nearest"], expected)


@pytest.mark.parametrize("kind", ["cnn", "mlp", "linear"])
def test_first_layer_scales_pixels_of_the_training_images(digits, kind):
    config = CONFIG.model_copy(update={"model": ModelConfig(kind=kind)})
    model = catalog.task(config).model(config, digits).float()
    x = torch.from_numpy(digits.train.rows)[:, None]
    scaled = model[0](x)
    assert x.dtype == torch.uint8
    assert scaled.shape == (len(digits.train), 1, 64)
    assert (scaled.mean().item(), scaled.std().item()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-3))
    assert model(x[:7]).shape == (7, 10)


@pytest.mark.parametrize(("hidden", "layers"), [(12, 2), (7, 3), (1, 1)])
def test_any_width_and_depth_makes_a_network(digits, hidden, layers):
    config = CONFIG.model_copy(update={"model": ModelConfig(kind="cnn", hidden=hidden, layers=layers)})
    model = catalog.task(config).model(config, digits).float()
    assert model(torch.from_numpy(digits.train.rows[:3])[:, None]).shape == (3, 10)


def moved(layer: Pixels, x: torch.Tensor, epoch: int, windows: torch.Tensor) -> torch.Tensor:
    source = Source(layer, 0, dtype=torch.float32, device=torch.device("cpu"))
    source.start(epoch)
    source.windows = windows
    return layer.train()(x).reshape(len(x), 8, 8)


def test_moved_images_depend_on_window_and_epoch_alone():
    layer = Pixels(torch.zeros(1), torch.ones(1), shift=2)
    x = torch.zeros(500, 1, 8, 8, 1, dtype=torch.uint8)
    x[:, 0, 4, 4] = 1
    numbers = torch.arange(500)
    whole = moved(layer, x, 1, numbers)
    assert torch.equal(moved(layer, x[300:], 1, numbers[300:]), whole[300:])
    assert not torch.equal(moved(layer, x, 2, numbers), whole)
    places = whole.nonzero()[:, 1:] - 4
    assert len(places) == 500
    counts = torch.bincount((places[:, 0] + 2) * 5 + places[:, 1] + 2, minlength=25)
    assert counts.min() > 5  # of 20 expected for each of 25 moves
    assert torch.equal(layer.eval()(x).reshape(500, 8, 8), x[:, 0, ..., 0].float())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "returns", "images": {"shift": 1}}, r"images\.shift is not used by task returns"),
        (
            {"task": "returns", "model": {"kind": "cnn"}},
            "model.kind cnn is not for task returns",
        ),
        ({"task": "images", "text": {"context": 3}}, r"text\.context is not used by task images"),
        ({"task": "images", "train": {"refit": True}}, "train.refit adds the validation dates"),
        (
            {"task": "images", "model": {"kind": "gpt"}},
            "model.kind gpt is not for task images; use linear, mlp",
        ),
        ({"task": "language"}, "model.kind mlp is not for task language; use gpt, hf"),
    ],
)
def test_settings_of_another_task_are_refused_by_name(settings, said):
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate(settings)


def test_fingerprint_covers_the_images_and_no_prices():
    same = CONFIG.model_copy(update={"data": CONFIG.data.model_copy(update={"window": 5})})
    other = CONFIG.model_copy(update={"images": CONFIG.images.model_copy(update={"shift": 1})})
    assert CONFIG.fingerprint == same.fingerprint != other.fingerprint


def test_statistics_of_channels_are_numpys(digits):
    colour = np.random.default_rng(0).integers(0, 256, (2000, 5, 4, 3)).astype(np.uint8)
    mean, deviation = channel_statistics(colour)
    np.testing.assert_allclose(mean, colour.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(deviation, colour.std(axis=(0, 1, 2)))
    assert channel_statistics(np.zeros((3, 2, 2, 1), np.uint8))[1].tolist() == [1.0]


def test_naive_classifiers_of_a_large_set_get_a_part_of_it(digits, monkeypatch):
    monkeypatch.setattr(images, "PIXELS", {"logistic": 64 * 300, "nearest": 64 * 700})
    few = images.naive(digits)
    right = {name: (said == digits.test.targets).mean() for name, said in few.items()}
    assert 0.75 < right["logistic"] < 0.92
    assert 0.85 < right["nearest"] < 0.95
    assert not np.array_equal(few["nearest"], images.naive(digits)["nearest"]) or right["nearest"] < 0.944


@pytest.mark.parametrize(("hidden", "layers"), [(8, 4), (16, 4), (2, 2)])
def test_batch_of_one_image_trains(digits, hidden, layers):
    config = CONFIG.model_copy(update={"model": ModelConfig(kind="cnn", hidden=hidden, layers=layers)})
    model = catalog.task(config).model(config, digits).float().train()
    model(torch.from_numpy(digits.train.rows[:1])[:, None]).sum().backward()


def test_more_halvings_than_an_image_has_are_refused(digits):
    config = CONFIG.model_copy(update={"model": ModelConfig(kind="cnn", hidden=64, layers=5)})
    with pytest.raises(ConfigError, match=r"model\.layers 5 halve images of 8 x 8"):
        catalog.task(config).model(config, digits)


@pytest.mark.parametrize(("task", "key"), [("images", "npz_path"), ("language", "test_fraction")])
def test_settings_of_prices_are_refused_by_name(task, key):
    model = {"kind": "cnn" if task == "images" else "gpt"}
    value = {"npz_path": "mine.npz", "test_fraction": 0.4}[key]
    with pytest.raises(ValueError, match=rf"data\.{key} is not used by task {task}"):
        RunConfig.model_validate({"task": task, "model": model, "data": {key: value}})
