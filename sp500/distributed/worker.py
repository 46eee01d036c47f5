"""One of N processes: gradients averaged by DDP or FSDP, sums by all-reduce."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sp500.distributed.prometheus import EpochGauges
from sp500.errors import ConfigError
from sp500.models import batch_norm
from sp500.models.stack import find_layers
from sp500.runs.record import EpochMetrics
from sp500.runs.store import Run
from sp500.training.worker import Parallel


class GroupWorker:
    """A rank of torch's process group, whoever started it. Rank 0 hands each epoch to `on_epoch`."""

    def __init__(
        self, rank: int, world: int, device: torch.device, on_epoch: Callable[[EpochMetrics], None] | None = None
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._on_epoch = on_epoch
        self.splits = False

    def wrap(self, model: nn.Module, parallel: Parallel) -> nn.Module:
        """The model under DDP or FSDP; as it is, on the device, where there is one worker."""
        if self.world == 1:
            return model.to(self.device)
        if self.device.type == "cuda":
            batch_norm.synchronize(model)
        if parallel == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            # The warning is about outputs that are views, as a linear layer's are. Nothing changes them in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            mesh = init_device_mesh(self.device.type, (self.world,))
            # A layer at a time is moved to the device and split here, and gathered for its part of the pass.
            try:
                for layer in [*find_layers(model), model]:
                    fully_shard(layer, mesh=mesh)
            except (AssertionError, ValueError) as error:
                raise ConfigError(f"train.parallel fsdp cannot split this model ({error}); take ddp") from error
            self.splits = True
            return model
        model.to(self.device)
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """Keep the gradients here: they are averaged once per step.

        Not with FSDP, where each rank would keep the whole gradient: it averages its parts every time.
        """
        plain = getattr(wrapped, "_orig_mod", wrapped)  # of a compiled model
        context: AbstractContextManager[None] = (
            plain.no_sync() if isinstance(plain, DistributedDataParallel) else nullcontext()
        )
        return context

    def full_tensor(self, value: Tensor) -> Tensor:
        """The whole tensor, from all ranks' parts."""
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def distribute_tensor(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's part of what every rank has whole."""
        if not self.splits:
            return whole
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor):  # a buffer
            return whole
        moved = whole.to(self.device)
        return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)

    def total(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def gather(self, value: object) -> list[Any]:
        """Every rank's value, on rank 0."""
        values = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []

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
