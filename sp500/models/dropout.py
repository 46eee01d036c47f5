"""Dropout whose masks depend on the window and not on who computes it, so any number of workers trains the same model.

A mask is a segment of a tape of random bits that the seed decides. Where it begins is an affine function of the
window's number, modulo the tape's length, with coefficients drawn for each epoch and layer: an odd factor makes it a
permutation, so no two of 2**20 windows share a segment. A mask is a gathered copy, 4 us for 256 x 128 values on one
core where drawing them took 190 us (docs/LOG.md). The price: 4 MiB per seed, rate and width of a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sp500.seeding import derive, torch_generator

TAPE = 2**20


class Masks:
    """Masks of one seed and rate: 0, or 1 / (1 - rate) for what is kept (Srivastava et al. 2014, inverted)."""

    def __init__(self, seed: int, rate: float, *, dtype: torch.dtype, device: torch.device) -> None:
        # Drawn on the CPU, so that a GPU drops the same.
        kept = torch.rand(TAPE, generator=torch_generator(seed, "dropout")) >= rate
        self._tape = kept.to(device, dtype).div_(1 - rate)
        self._seed, self._epoch = seed, 0
        self._segments: dict[int, Tensor] = {}
        self._coefficients: dict[int, tuple[int, int]] = {}

    def start(self, epoch: int) -> None:
        """Draw other masks from here on."""
        self._epoch = epoch
        self._coefficients.clear()

    def of(self, layer: int, windows: Tensor, units: int) -> Tensor:
        """Masks [batch, unit] of a layer for the windows of these numbers [batch] in the training set."""
        if layer not in self._coefficients:
            drawn = derive(self._seed, "dropout", self._epoch, layer)
            self._coefficients[layer] = (drawn // TAPE % TAPE) | 1, drawn % TAPE
        factor, shift = self._coefficients[layer]
        if units not in self._segments:  # views [start, unit] of the tape as a ring
            ring = self._tape.repeat(1 + -(-units // TAPE))
            self._segments[units] = ring[: TAPE + units - 1].unfold(0, units, 1)
        starts = (windows * factor).add_(shift).bitwise_and_(TAPE - 1)
        return self._segments[units].index_select(0, starts)


class Dropout(nn.Module):
    """Drops a share `rate` of the values [batch, ...] in training; outside of the training loop as torch does."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.source: Source | None = None
        self.layer = 0

    def forward(self, x: Tensor) -> Tensor:
        """The values, some of them dropped."""
        if not self.training or not self.rate:
            return x
        if self.source is None:
            return functional.dropout(x, self.rate)
        mask = self.source.masks[self.rate].of(self.layer, self.source.windows, x[0].numel())
        return x * mask.view(x.shape)


class Source:
    """What a model's dropout layers drop: the loop tells it the epoch, and the windows of each batch."""

    def __init__(self, model: nn.Module, seed: int, *, dtype: torch.dtype, device: torch.device) -> None:
        layers = [module for module in model.modules() if isinstance(module, Dropout)]
        rates = {layer.rate for layer in layers if layer.rate}
        self.masks = {rate: Masks(seed, rate, dtype=dtype, device=device) for rate in rates}
        self.windows = torch.empty(0, dtype=torch.int64)
        for number, layer in enumerate(layers):
            layer.source, layer.layer = self, number

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        for masks in self.masks.values():
            masks.start(epoch)
