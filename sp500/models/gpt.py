"""A small GPT over bytes: causal attention, learned positions, pre-norm blocks (Radford et al. 2019)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from sp500.models.dropout import Dropout
from sp500.models.shape import Shape


class Block(nn.Module):
    """Attention and a feed-forward network, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropouts = nn.ModuleList([Dropout(dropout), Dropout(dropout)])

    def forward(self, x: Float[Tensor, "batch window width"]) -> Float[Tensor, "batch window width"]:
        """Return the states of the next layer."""
        batch, window, width = x.shape
        parts = self.attention(self.norms[0](x)).view(batch, window, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropouts[0](self.mixed(attended.transpose(1, 2).reshape(batch, window, width)))
        return x + self.dropouts[1](self.feed(self.norms[1](x)))


class GPT(nn.Module):
    """`layers` blocks of width `hidden`; the scores of the next byte after each byte of a window."""

    def __init__(self, shape: Shape, *, hidden: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.outputs, hidden)
        self.position = nn.Parameter(torch.empty(shape.window, hidden))
        self.body = nn.Sequential(*(Block(hidden, heads, dropout) for _ in range(layers)), nn.LayerNorm(hidden))
        self.head = nn.Linear(hidden, shape.outputs)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)
        for name, weights in self.body.named_parameters():
            if weights.ndim == 2:
                into_states = name.endswith(("mixed.weight", "feed.2.weight"))
                nn.init.normal_(weights, std=0.02 / (math.sqrt(2 * layers) if into_states else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weights)

    def forward(self, x: Shaped[Tensor, "batch window"]) -> Float[Tensor, "batch window output"]:
        """Return scores of the byte after each byte."""
        return self.head(self.body(self.embed(x.long()) + self.position[: x.shape[1]]))
