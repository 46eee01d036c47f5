"""The smoke job of a new machine or cluster: seeded Gaussian clusters that every worker generates for itself.

The best possible accuracy is known (assign to the nearest centre) and reported next to the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.runs.results import DataCard, Metrics
from sp500.seeding import numpy_generator
from sp500.tasks.settings import SyntheticConfig
from sp500.training.task import Task

# Distance of the centres from the origin in noise standard deviations: close enough that a few samples are hopeless.
RADIUS = 3.0


@dataclass(frozen=True)
class Synthetic(Task):
    """The cluster, of `classes`, that a sample came from."""

    config: RunConfig
    made_by_workers: bool = True

    def prepare(self, config: RunConfig) -> Dataset:
        """Return 70% training, 15% validation and 15% test samples; a window is one sample."""
        x, y, _ = self._samples()
        cuts = int(len(x) * 0.7), int(len(x) * 0.85)
        bounds = ((0, cuts[0]), cuts, (cuts[1], len(x)))
        train, valid, test = (
            Windows(x[a:b].astype(config.train.dtype), np.arange(b - a), y[a:b], 1) for a, b in bounds
        )
        sizes = {"train": len(train), "valid": len(valid), "test": len(test)}
        card: DataCard = {
            "source": "synthetic",
            "sha256": "",
            "windows": sizes,
            "tickers": [],
            "repairs": [],
            "notes": [],
        }
        return Dataset(train, valid, test, card=card, outputs=self.config.section(SyntheticConfig).classes)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of cross entropies."""
        return F.cross_entropy(output, target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return accuracy, f1, confusion matrix. `naive`: the majority class; the test has `best_possible_accuracy`."""
        assert dataset.valid is not None
        test = dataset.test
        majority = np.bincount(dataset.train.targets, minlength=self.config.section(SyntheticConfig).classes)
        naive = metrics.multiclass(np.tile(majority, (len(test), 1)), test.targets)
        x, y, centres = self._samples()
        distance = ((x[-len(test) :, None, :] - centres) ** 2).sum(axis=2)
        return {
            "valid": metrics.multiclass(outputs["valid"], dataset.valid.targets),
            "test": {
                **metrics.multiclass(outputs["test"], test.targets),
                "best_possible_accuracy": metrics.multiclass(-distance, y[-len(test) :])["accuracy"],
            },
            "naive": {"majority": naive},
        }

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns forecast and target: class numbers."""
        return pd.DataFrame({"forecast": output.argmax(axis=1), "target": windows.targets})

    def _samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw X [sample, feature], class [sample], centres [class, feature]."""
        settings = self.config.section(SyntheticConfig)
        generator = numpy_generator(self.config.data.seed, "synthetic")
        centres = generator.standard_normal((settings.classes, settings.features))
        centres *= RADIUS / np.linalg.norm(centres, axis=1, keepdims=True)
        y = generator.integers(settings.classes, size=settings.samples)
        return centres[y] + generator.standard_normal((settings.samples, settings.features)), y, centres
