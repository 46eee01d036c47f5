"""The layers that a deep model stacks: what FSDP gathers one at a time, and gradient checkpointing computes again."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from sp500.errors import ConfigError
from sp500.models.batch_norm import normalizes_batches

log = logging.getLogger(__name__)


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of which a Sequential, ModuleList or ModuleDict holds several of one class.

    Found are the innermost, each once; empty for a model that stacks nothing.
    """
    layers: list[nn.Module] = []
    holds = isinstance(model, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    kinds = Counter(type(layer) for layer in model.children() if any(layer.children()))
    for child in model.children():
        within = find_layers(child)
        layers += within or ([child] if holds and kinds[type(child)] > 1 else [])
    return list(dict.fromkeys(layers))


def recompute(model: nn.Module) -> None:
    """Keep no activations inside stacked layers in training (Chen et al. 2016, arXiv:1604.06174).

    Raises ConfigError for batch normalisation in them, whose statistics would be updated twice.
    """
    layers = find_layers(model)
    if not layers:
        log.warning("train.recompute changes nothing: the model stacks no layers")
    for layer in layers:
        if normalizes_batches(layer):
            raise ConfigError("train.recompute would update the statistics of batch normalisation twice; leave it out")
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
