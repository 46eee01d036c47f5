"""Linear regression on the flattened window: the model to beat before any deeper one is believed."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from sp500.models.shape import Shape


class Linear(nn.Module):
    """One weight per day and feature."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head = nn.Linear(shape.window * shape.features, shape.outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return forecasts of a batch of windows."""
        return self.head(x.flatten(1))
