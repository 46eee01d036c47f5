"""Every kind of model by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from sp500.config import ModelConfig
from sp500.machine.memory import total_bytes
from sp500.models.cnn import CNN
from sp500.models.gpt import GPT
from sp500.models.linear import Linear
from sp500.models.lstm import LSTM
from sp500.models.mlp import MLP
from sp500.models.shape import Shape
from sp500.models.transformer import Transformer

COPIES = 4
"""What training keeps in memory of every weight: itself, its gradient and two moments of Adam."""
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "mlp": MLP,
    "lstm": LSTM,
    "transformer": Transformer,
    "cnn": CNN,
    "gpt": GPT,
}


def build(config: ModelConfig, shape: Shape) -> nn.Module:
    """Network of `config.kind`: [batch, window, feature] -> [batch, output].

    Its last layer, `head`, has weights of zero and the bias `naive_output`, so training starts from the naive
    forecast: the training mean or its log odds. Random weights there forecast with 0.7 times the spread of the targets,
    which daily returns never justify, and early stopping then keeps much of that noise (docs/LOG.md).

    Raises MemoryError for a model that cannot be trained in this machine's or container's memory. A node of Kubernetes
    grants any allocation (kubelet sets vm.overcommit_memory to 1), and would kill the whole pod while it is filled.
    """
    make = partial(MODELS[config.kind], shape, **config.used)
    with torch.device("meta"):
        needed = COPIES * sum(weights.nbytes for weights in make().parameters())
    if needed > (total := total_bytes()):
        raise MemoryError(
            f"training takes {needed / 2**30:,.1f} GiB for weights, gradients and Adam's moments; there are "
            f"{total / 2**30:,.1f} GiB. Use a smaller model.hidden or model.layers"
        )
    model = make()
    nn.init.zeros_(model.get_parameter("head.weight"))
    nn.init.constant_(model.get_parameter("head.bias"), shape.naive_output)
    return model
