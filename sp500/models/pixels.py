"""The first layer of a model of images: whole numbers become numbers around zero, and in training images may shift."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from sp500.models.dropout import RandomLayer


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
        """Scaled features."""
        assert isinstance(self.mean, Tensor)
        images = (x[:, 0].to(self.mean.dtype) - self.mean) / self.deviation
        if self.training and self.shift and self.source is not None:
            images = _shifted(images, self.source.integers(self, (2 * self.shift + 1) ** 2), self.shift)
        features: Tensor = images.flatten(1)[:, None]
        return features


def _shifted(images: Tensor, drawn: Tensor, most: int) -> Tensor:
    batch, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, most, most, most, most))
    steps = 2 * most + 1
    down, right = (drawn // steps)[:, None, None], (drawn % steps)[:, None, None]
    rows = down + torch.arange(height, device=images.device)[:, None]
    columns = right + torch.arange(width, device=images.device)
    return padded[torch.arange(batch, device=images.device)[:, None, None], rows, columns]
