"""Multi-layer perceptron on the flattened window."""

from __future__ import annotations

import itertools

from jaxtyping import Float
from torch import Tensor, nn

from sp500.models.dropout import Dropout
from sp500.models.shape import Shape


class MLP(nn.Module):
    """`layers` hidden layers of width `hidden`, ReLU and dropout after each."""

    def __init__(self, shape: Shape, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [shape.window * shape.features] + [hidden] * layers
        blocks: list[nn.Module] = []
        for inner, outer in itertools.pairwise(widths):
            blocks += [nn.Linear(inner, outer), nn.ReLU(), Dropout(dropout)]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return forecasts of a batch of windows."""
        return self.head(self.body(x.flatten(1)))
