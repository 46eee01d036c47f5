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
    """Network of `config.kind`: [batch, window, feature] -> [batch, output].

    Its last layer, `head`, starts at zero, so training starts from the naive forecast: a return of zero, or equal odds.
    Random weights there forecast with 0.7 times the spread of the targets, which daily returns never justify, and
    early stopping then keeps much of that noise (docs/LOG.md).
    """
    model = MODELS[config.kind](window, features, outputs, **config.used)
    for weights in model.get_submodule("head").parameters():
        nn.init.zeros_(weights)
    return model
