"""A task and a model of a user's own: does a sine rise in its next step?"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from sp500 import Dataset, ModelConfig, RunConfig, Task, Windows, metrics


class Rises(Task):
    """Two classes, from the last steps of a sine with noise."""

    def prepare(self, config: RunConfig) -> Dataset:
        """Windows of one series; the first part of it is trained on, its mean is taken off."""
        steps = np.arange(600)
        series = np.sin(steps / 3) + (steps * 7919 % 101 - 50) / 200
        mean = float(series[:400].mean())
        rows = (series - mean)[:, None].astype(config.train.dtype)
        length = config.data.window

        def part(first: int, last: int) -> Windows:
            starts = np.arange(first, last - length)
            rises = series[starts + length] > series[starts + length - 1]
            return Windows(rows, starts, rises.astype(np.int64), length)

        return Dataset(part(0, 400), part(400, 500), part(500, 600), outputs=2, state={"mean": mean})

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over the batch."""
        return F.cross_entropy(output, target, reduction="sum")

    def judge(self, outputs: dict, dataset: Dataset) -> dict:
        """Accuracy, next to that of the majority."""
        answers = {name: metrics.multiclass(outputs[name], getattr(dataset, name).targets) for name in outputs}
        majority = np.bincount(dataset.train.targets, minlength=2)
        naive = metrics.multiclass(np.tile(majority, (len(dataset.test), 1)), dataset.test.targets)
        return {**answers, "naive": {"majority": naive}}


class Narrow(nn.Module):
    """One hidden layer."""

    def __init__(self, config: ModelConfig, dataset: Dataset, *, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(dataset.window * dataset.features, width)
        self.head = nn.Linear(width, dataset.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[window, class] from [window, step, number]."""
        return self.head(self.first(x.flatten(1)).tanh())
