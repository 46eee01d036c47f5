"""One of N processes: gradients averaged by DDP, sums by all-reduce."""

from __future__ import annotations

from collections.abc import Callable

import ray.train
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sp500.distributed.prometheus import EpochGauges
from sp500.runs.record import EpochMetrics
from sp500.runs.store import Run


class GroupWorker:
    """A rank of torch's process group, whoever started it. Rank 0 hands each epoch to `on_epoch`."""

    def __init__(
        self, rank: int, world: int, device: torch.device, on_epoch: Callable[[EpochMetrics], None] | None = None
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._on_epoch = on_epoch

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under DDP; alone, as it is: there is nobody to average with."""
        if self.world == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def total(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def report(self, epoch: EpochMetrics) -> None:
        """Hand over the epoch.

        Not through `ray.train.report`: its controller takes one report per poll, every 2 s, and all ranks wait for it.
        """
        if self.rank == 0 and self._on_epoch:
            self._on_epoch(epoch)


class RayWorker(GroupWorker):
    """This worker of Ray Train. Rank 0 writes the epochs to the run's folder and shows the last one to Prometheus.

    Without a run, as for its further seeds, epochs leave no trace.
    """

    def __init__(self, device: torch.device, run: Run | None) -> None:
        context = ray.train.get_context()
        gauges = EpochGauges(run.name) if run else None

        def keep(epoch: EpochMetrics) -> None:
            if run and gauges:
                run.append_epoch(epoch)
                gauges.set(epoch)

        super().__init__(context.get_world_rank(), context.get_world_size(), device, keep)
