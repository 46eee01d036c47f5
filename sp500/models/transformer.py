"""Transformer encoder over the days of the window, with a learned position per day (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sp500.models.dropout import Dropout
from sp500.models.shape import Shape


class Transformer(nn.Module):
    """`layers` pre-norm encoder layers of width `hidden`; the last day's state makes the forecast."""

    def __init__(self, shape: Shape, *, hidden: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(shape.features, hidden)
        self.position = nn.Parameter(torch.empty(shape.window, hidden).normal_().mul_(0.02))
        layer = nn.TransformerEncoderLayer(
            hidden, heads, dim_feedforward=2 * hidden, dropout=0.0, batch_first=True, norm_first=True
        )
        # In place of torch's, which do not know which windows they see. Attention weights are not dropped.
        for name in ("dropout", "dropout1", "dropout2"):
            setattr(layer, name, Dropout(dropout))
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Float[Tensor, "batch window feature"]) -> Float[Tensor, "batch output"]:
        """Return forecasts of a batch of windows."""
        return self.head(self.body(self.embed(x) + self.position)[:, -1])
