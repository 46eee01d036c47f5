"""LSTM over the days of the window; the last day's state makes the forecast (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class LSTM(nn.Module):
    """`layers` stacked LSTMs of width `hidden`, dropout between them and before the head."""

    def __init__(self, window: int, features: int, outputs: int, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        del window  # any length
        self.body = nn.LSTM(features, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Forecasts of a batch of windows."""
        states, _ = self.body(x)
        return self.head(self.dropout(states[:, -1]))
