"""Which class an image is of, always compared with the majority class, a logistic regression and the nearest image."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.images import dataset as images
from sp500.data.windows import Dataset, Windows
from sp500.models import catalog
from sp500.models.pixels import Pixels
from sp500.runs.results import Metrics
from sp500.training.task import Task

MOST = 10_000
"""Training images of the logistic regression and of the nearest image, at most: the first ones."""


@dataclass(frozen=True)
class Images(Task):
    """Class of an image. Naive: the majority class, a logistic regression on the pixels, the nearest training image."""

    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Images of the source, split in order."""
        return images.dataset(config.images, config.data)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        """The network of the settings behind a layer that scales pixels."""
        pixels = dataset.train.rows.astype(np.float64)
        mean, deviation = pixels.mean(axis=(0, 1, 2)), pixels.std(axis=(0, 1, 2))
        scale = torch.from_numpy(mean), torch.from_numpy(np.where(deviation > 0, deviation, 1.0))
        return nn.Sequential(Pixels(*scale, config.images.shift), catalog.build(config.model, dataset))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of cross entropies."""
        return F.cross_entropy(output, target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Accuracy, f1 and confusion matrix; the improvement over the best naive classifier on the test."""
        splits = {"valid": dataset.valid, "test": dataset.test}
        found: Metrics = {
            name: metrics.multiclass(outputs[name], part.targets) for name, part in splits.items() if part is not None
        }
        said = naive(dataset)
        classes = np.arange(dataset.outputs)
        scored = {
            name: metrics.multiclass((label[:, None] == classes).astype(np.float64), dataset.test.targets)
            for name, label in said.items()
        }
        best = metrics.best_naive(scored, "accuracy", largest=True)
        found["test"]["improvement"] = {
            "over": best,
            "metric": "error_rate",
            **metrics.improvement(
                (outputs["test"].argmax(axis=1) != dataset.test.targets).astype(np.float64),
                (said[best] != dataset.test.targets).astype(np.float64),
                np.arange(len(dataset.test)),
            ),
        }
        return {**found, "naive": scored}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Columns forecast and target: class numbers."""
        return pd.DataFrame({"forecast": output.argmax(axis=1), "target": windows.targets})


def naive(dataset: Dataset) -> dict[str, np.ndarray]:
    """Classes [image] of the test images by each naive classifier, which have nothing to tune and know the validation
    images, too.

    Pixels are scaled to at most 1, and the regression has scikit-learn's own penalty (C = 1).
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    known = [part for part in (dataset.train, dataset.valid) if part is not None]
    rows, labels = (np.concatenate([getattr(part, name) for part in known])[:MOST] for name in ("rows", "targets"))
    largest, test = max(int(rows.max()), 1), dataset.test
    x, asked = rows.reshape(len(rows), -1) / largest, test.rows.reshape(len(test), -1) / largest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a regression that is not quite fitted is naive enough
        logistic = LogisticRegression(max_iter=300).fit(x, labels)
    return {
        "majority": np.full(len(test), np.bincount(labels).argmax()),
        "logistic": logistic.predict(asked),
        "nearest": KNeighborsClassifier(1).fit(x, labels).predict(asked),
    }
