"""Convolutions over an image, with group normalisation (Wu and He 2018, arXiv:1803.08494).

Batch normalisation would make the result depend on how many workers share a batch.
"""

from __future__ import annotations

import itertools
import math

from jaxtyping import Float
from torch import Tensor, nn

from sp500.errors import ConfigError
from sp500.models.dropout import Dropout
from sp500.models.shape import Shape

GROUPS = 8


class CNN(nn.Module):
    """`layers` blocks of two 3 x 3 convolutions. All but the first halve the image and double the channels.

    Raises ConfigError for more halvings than an image has pixels.
    """

    def __init__(self, shape: Shape, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.image = height, width, _ = shape.row
        if 2 ** (layers - 1) > max(height, width):
            raise ConfigError(f"model.layers {layers} halve images of {height} x {width} to nothing")
        widths = [shape.row[2], *(max(hidden >> block, 1) for block in reversed(range(layers)))]
        blocks: list[nn.Module] = []
        for number, (inner, outer) in enumerate(itertools.pairwise(widths)):
            blocks += [nn.MaxPool2d(2, ceil_mode=True)] if number else []
            blocks += [*_convolution(inner, outer), *_convolution(outer, outer)]
        self.body = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(1))
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(4 * widths[-1], shape.outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return class scores of a batch of images, given as rows of scaled pixels."""
        images = x.reshape(len(x), *self.image).permute(0, 3, 1, 2)
        return self.head(self.dropout(self.body(images)))


def _convolution(inner: int, outer: int) -> list[nn.Module]:
    # One value a group would be normalised to nothing.
    groups = 1 if outer <= GROUPS else math.gcd(GROUPS, outer)
    return [nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(groups, outer), nn.ReLU()]
