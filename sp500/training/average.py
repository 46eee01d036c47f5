"""The exponential moving average of the weights (Polyak and Juditsky 1992, with a decay), which `train.ema` asks for.

It is what torch's AveragedModel keeps with `get_ema_multi_avg_fn`: the first step's weights, then after each step
decay x average + (1 - decay) x weights. Buffers, such as statistics of batch normalisation, are those of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PREFIX = "weights/"
"""Before the names of the weights themselves in a checkpoint, whose model is the average."""


class Average:
    """The average of a model's trained weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        self._update = get_ema_multi_avg_fn(decay)
        self._weights: dict[str, Tensor] = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad
        }
        self._means = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Count the weights after a step, which is counted from 0."""
        means, weights = [*self._means.values()], [*self._weights.values()]
        if step:
            self._update(means, weights, step)
        else:
            for mean, weight in zip(means, weights, strict=True):
                mean.copy_(weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for the length of a context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, mean in self._means.items():
            weight = self._weights[name]
            kept = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(kept)

    def dump(self) -> dict[str, Tensor]:
        """Return the weights themselves while the average is applied."""
        return {f"{PREFIX}{name}": kept for name, kept in self._means.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the average from the model, and give it the weights that `dump` returns."""
        for name, weight in self._weights.items():
            self._means[name].copy_(weight)
            weight.copy_(tensors[f"{PREFIX}{name}"])
