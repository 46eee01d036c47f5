"""LSTM over the days of the window; the last day's state makes the forecast (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

import itertools

from jaxtyping import Float
from torch import Tensor, nn

from sp500.models.dropout import Dropout
from sp500.models.shape import Shape


class LSTM(nn.Module):
    """`layers` stacked LSTMs of width `hidden`, dropout between them and before the head.

    One `nn.LSTM` per layer: torch's own dropout between layers does not know which windows it sees.
    """

    def __init__(self, shape: Shape, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [shape.features] + [hidden] * layers
        self.body = nn.ModuleList(
            nn.LSTM(inner, outer, batch_first=True) for inner, outer in itertools.pairwise(widths)
        )
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in range(layers))
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return forecasts of a batch of windows."""
        states = x
        for body, dropout in zip(self.body[:-1], self.dropouts[:-1], strict=True):
            states = dropout(body(states)[0])
        states = self.body[-1](states)[0]
        return self.head(self.dropouts[-1](states[:, -1]))
