"""One of N processes under Ray Train: gradients averaged by DDP, sums by all-reduce."""

from __future__ import annotations

import ray.train
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sp500.runs.record import EpochMetrics
from sp500.runs.store import Run


class RayWorker:
    """This worker's rank and device. Rank 0 writes the epochs to the run's folder on the shared storage."""

    def __init__(self, device: torch.device, run: Run) -> None:
        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        self.world: int = context.get_world_size()
        self.device = device
        self._run = run

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under DDP."""
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def total(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def report(self, epoch: EpochMetrics) -> None:
        """Keep the epoch's line.

        Not through `ray.train.report`: its controller takes one report per poll, every 2 s, and all ranks wait for it.
        """
        if self.rank == 0:
            self._run.append_epoch(epoch)
