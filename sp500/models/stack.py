"""The layers that a deep model stacks: what FSDP gathers one at a time, and gradient checkpointing computes again."""

from __future__ import annotations

from collections import Counter
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def stacked(model: nn.Module) -> list[nn.Module]:
    """Modules with modules of their own, of which a Sequential or ModuleList holds several of one class.

    Found are the outermost; empty for a model that stacks nothing.
    """
    found: list[nn.Module] = []
    for child in model.children():
        alike: list[nn.Module] = []
        if isinstance(child, nn.Sequential | nn.ModuleList):
            kinds = Counter(type(layer) for layer in child if any(layer.children()))
            alike = [layer for layer in child if kinds[type(layer)] > 1]
        found += alike or stacked(child)
    return found


def recompute(model: nn.Module) -> None:
    """Keep no activations inside stacked layers in training (Chen et al. 2016, arXiv:1604.06174)."""
    for layer in stacked(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
