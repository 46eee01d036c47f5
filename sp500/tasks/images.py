"""The class of an image, always compared with the majority class, a logistic regression and the nearest image."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor, nn

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.copied import Copied
from sp500.data.images import dataset as images
from sp500.data.images.settings import ImagesConfig
from sp500.data.windows import Dataset, Windows
from sp500.models.dropout import RandomLayer
from sp500.runs.results import Metrics
from sp500.seeding import numpy_generator
from sp500.training.task import Task

PIXELS = {"logistic": 10_000_000, "nearest": 100_000_000}
"""Of the images that a naive classifier knows, at most."""


@dataclass(frozen=True)
class Images(Task):
    """Class of an image. Naive: the majority class, a logistic regression on the pixels, the nearest training image."""

    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Return images of the source, split in order, with copies of the training images."""
        dataset = images.dataset(config.section(ImagesConfig), config.data)
        return Copied(dataset, config.data).dataset(config.train.dtype)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        """Return the network of the settings behind a layer that scales pixels."""
        mean, deviation = (torch.tensor(dataset.state[name], dtype=torch.float64) for name in ("mean", "deviation"))
        network = super().model(config, dataset)
        return nn.Sequential(Pixels(mean, deviation, config.section(ImagesConfig).shift), network)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of cross entropies."""
        return F.cross_entropy(output, target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return accuracy, f1 and confusion matrix; the improvement over the best naive classifier on the test."""
        splits = {"valid": dataset.valid, "test": dataset.test}
        scores: Metrics = {
            name: metrics.multiclass(outputs[name], part.targets) for name, part in splits.items() if part is not None
        }
        labels = naive(dataset)
        classes = np.arange(dataset.outputs)
        scored = {
            name: metrics.multiclass((label[:, None] == classes).astype(np.float64), dataset.test.targets)
            for name, label in labels.items()
        }
        best = metrics.best_naive(scored, "accuracy", largest=True)
        scores["test"]["improvement"] = {
            "over": best,
            "metric": "error_rate",
            **metrics.improvement(
                (outputs["test"].argmax(axis=1) != dataset.test.targets).astype(np.float64),
                (labels[best] != dataset.test.targets).astype(np.float64),
                np.arange(len(dataset.test)),
            ),
        }
        return {**scores, "naive": scored}

    def probabilities(self, output: np.ndarray) -> np.ndarray:
        """Return the softmax of outputs [window, class]."""
        return np.asarray(torch.from_numpy(output).double().softmax(dim=1))

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns forecast and target: class numbers."""
        return pd.DataFrame({"forecast": output.argmax(axis=1), "target": windows.targets})


class Pixels(RandomLayer):
    """Pixels [batch, 1, height, width, channel] to features [batch, 1, height x width x channel].

    Each channel gets mean 0 and standard deviation 1 by the training images' `mean` and `deviation` [channel]. In
    training each image is moved by up to `shift` pixels each way, filled with the mean.
    """

    def __init__(self, mean: Tensor, deviation: Tensor, shift: int = 0) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.shift = shift

    def forward(self, x: Shaped[Tensor, "batch 1 height width channel"]) -> Tensor:
        """Return scaled features."""
        assert isinstance(self.mean, Tensor)
        images = (x[:, 0].to(self.mean.dtype) - self.mean) / self.deviation
        if self.training and self.shift and self.source is not None:
            images = _shift(images, self.source.integers(self, (2 * self.shift + 1) ** 2), self.shift)
        features: Tensor = images.flatten(1)[:, None]
        return features


def naive(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return classes [image] of the test images by naive classifiers, fitted to training and validation images.

    Pixels are scaled to at most 1. Of a large set the regression and the nearest image get as many images as have
    PIXELS pixels, drawn at random. The regression has scikit-learn's own penalty (C = 1).
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    test, known = dataset.test, [part for part in (dataset.train, dataset.valid) if part is not None]
    labels = np.concatenate([part.targets for part in known])
    largest = max(1, *(int(part.rows.max()) for part in known))

    def features(rows: np.ndarray) -> np.ndarray:
        """Return pixels [image, pixel]."""
        return (rows.reshape(len(rows), -1) / largest).astype(np.float32)

    def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels and classes of as many images as the classifier gets."""
        order, count = np.arange(len(labels)), max(PIXELS[name] // dataset.features, 1)
        if count < len(order):
            order = np.sort(numpy_generator(0, "naive", name).permutation(len(order))[:count])
        rows = np.concatenate([part.rows[order[(order >= at) & (order < at + len(part))] - at] for at, part in starts])
        return features(rows), labels[order]

    starts = list(zip((0, len(known[0])), known, strict=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a regression that is not quite fitted is naive enough
        logistic = LogisticRegression(max_iter=300).fit(*draw("logistic"))
    test_images = features(test.rows)
    return {
        "majority": np.full(len(test), np.bincount(labels).argmax()),
        "logistic": logistic.predict(test_images),
        "nearest": KNeighborsClassifier(1).fit(*draw("nearest")).predict(test_images),
    }


def _shift(images: Tensor, number: Tensor, most: int) -> Tensor:
    batch, height, width, _ = images.shape
    padded = F.pad(images, (0, 0, most, most, most, most))
    steps = 2 * most + 1
    down, right = (number // steps)[:, None, None], (number % steps)[:, None, None]
    rows = down + torch.arange(height, device=images.device)[:, None]
    columns = right + torch.arange(width, device=images.device)
    return padded[torch.arange(batch, device=images.device)[:, None, None], rows, columns]
