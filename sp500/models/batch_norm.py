"""Batch normalisation (Ioffe and Szegedy 2015, arXiv:1502.03167) in a model that several workers train.

Its statistics are those of the images that are computed together, so results depend on how a batch is cut.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@runtime_checkable
class Synchronized(Protocol):
    """A module with layers of a library's own that torch's conversion would change."""

    def synchronize(self) -> None:
        """Make its batch normalisation use statistics over all workers."""
        ...


def normalizes_batches(model: nn.Module) -> bool:
    """Return whether the model has batch normalisation."""
    return any(isinstance(layer, BATCH_NORM) for layer in model.modules())


def statistics(model: nn.Module) -> list[Tensor]:
    """Return running means, variances and counts, which a forward pass in training changes."""
    layers = [layer for layer in model.modules() if isinstance(layer, BATCH_NORM)]
    return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]


def synchronize(model: nn.Module) -> None:
    """Use statistics over all workers in training. For GPUs: torch 2.13 has no SyncBatchNorm for CPUs."""
    own = [module for module in model.modules() if isinstance(module, Synchronized)]
    for module in own:
        module.synchronize()
    if not own:
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
