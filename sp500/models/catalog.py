"""Every kind of model by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from sp500.config import ModelConfig
from sp500.models.linear import Linear
from sp500.models.lstm import LSTM
from sp500.models.mlp import MLP
from sp500.models.transformer import Transformer

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "lstm": LSTM,
    "transformer": Transformer,
}


def build(config: ModelConfig, *, window: int, features: int, outputs: int) -> nn.Module:
    """Network of `config.kind`: [batch, window, feature] -> [batch, output]."""
    return MODELS[config.kind](window, features, outputs, **config.used)
