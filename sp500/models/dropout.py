"""Random layers that depend on the window and not on who computes it, so any number of workers trains the same model.

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
        survivors = torch.rand(TAPE, generator=torch_generator(seed, "dropout")) >= rate
        self._tape = survivors.to(device, dtype).div_(1 - rate)
        self._seed, self._epoch = seed, 0
        self._segments: dict[int, Tensor] = {}
        self._coefficients: dict[int, tuple[int, int]] = {}

    def start(self, epoch: int) -> None:
        """Draw other masks from here on."""
        self._epoch = epoch
        self._coefficients.clear()

    def of(self, layer: int, windows: Tensor, units: int) -> Tensor:
        """Return masks [batch, unit] of a layer for the windows of these numbers [batch] in the training set."""
        if layer not in self._coefficients:
            number = derive(self._seed, "dropout", self._epoch, layer)
            self._coefficients[layer] = (number // TAPE % TAPE) | 1, number % TAPE
        factor, shift = self._coefficients[layer]
        if units not in self._segments:  # views [start, unit] of the tape as a ring
            ring = self._tape.repeat(1 + -(-units // TAPE))
            self._segments[units] = ring[: TAPE + units - 1].unfold(0, units, 1)
        starts = (windows * factor).add_(shift).bitwise_and_(TAPE - 1)
        return self._segments[units].index_select(0, starts)


class RandomLayer(nn.Module):
    """A layer that draws numbers in training: the loop gives it the source of them, and its number in the model."""

    source: Source | None = None
    layer: int = 0


class Dropout(RandomLayer):
    """Drops a share `rate` of the values [batch, ...] in training; outside of the training loop as torch does."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return the values, some of them dropped."""
        if not self.training or not self.rate:
            return x
        if self.source is None:
            return functional.dropout(x, self.rate)
        return x * self.source.mask(self, x[0].numel()).view(x.shape)


class Source:
    """Source of a model's random numbers. The training loop sets the epoch, and the windows of each batch."""

    def __init__(self, model: nn.Module, seed: int, *, dtype: torch.dtype, device: torch.device) -> None:
        layers = [module for module in model.modules() if isinstance(module, RandomLayer)]
        rates = {layer.rate for layer in layers if isinstance(layer, Dropout) and layer.rate}
        self._seed, self._epoch = seed, 0
        self.masks = {rate: Masks(seed, rate, dtype=dtype, device=device) for rate in rates}
        self.windows = torch.empty(0, dtype=torch.int64)
        for number, layer in enumerate(layers):
            layer.source, layer.layer = self, number

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        self._epoch = epoch
        for masks in self.masks.values():
            masks.start(epoch)

    def disable_compile(self) -> None:
        """Make torch.compile call what draws: it indexes a large tape, and knows epoch and windows by this object."""
        self.mask = torch.compiler.disable(self.mask)  # type: ignore[method-assign]
        self.integers = torch.compiler.disable(self.integers)  # type: ignore[method-assign]

    def mask(self, of: Dropout, units: int) -> Tensor:
        """Return masks [batch, unit] of a layer: not by its number, which the compiler would take for a constant."""
        return self.masks[of.rate].of(of.layer, self.windows, units)

    def integers(self, of: RandomLayer, high: int) -> Tensor:
        """Return a number below `high` for each window of the batch [batch]."""
        number = derive(self._seed, "integers", self._epoch, of.layer)
        # A linear congruential step per window: its upper bits are as good as random for a shift of pixels.
        mixed = self.windows * 0x5851F42D4C957F2D + number
        return ((mixed ^ (mixed >> 29)) * 0x2545F4914F6CDD1D >> 33).remainder(high)
