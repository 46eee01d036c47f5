"""Workers: this process by itself, or one of many. The loop does not know which."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sp500.errors import ConfigError, ResourcesError
from sp500.models import batch_norm
from sp500.models.stack import find_layers
from sp500.runs.record import EpochMetrics
from sp500.training import ddp

Parallel = Literal["ddp", "fsdp"]


@runtime_checkable
class Worker(Protocol):
    """One of `world` processes that train one model together."""

    rank: int
    world: int
    device: torch.device
    splits: bool
    """Whether the model that it wraps is split, so that it holds a part."""

    def wrap(self, model: nn.Module, parallel: Parallel, *, find_unused: bool = False) -> nn.Module:
        """Return the model on the worker's device, averaging its gradients over all workers.

        `find_unused`: there may be weights that a forward pass does not use.
        """
        ...

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """Return a context for a backward pass whose gradients are averaged only with those of the next."""
        ...

    def full_tensor(self, value: Tensor) -> Tensor:
        """Return a whole tensor of model or optimiser, of which a worker may hold a part. All workers call it."""
        ...

    def distribute_tensor(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this worker's part of `whole`, placed as `like` is: the inverse of `full_tensor`."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of `value` over all workers, the same on each."""
        ...

    def gather(self, value: object) -> list[Any]:
        """Return every worker's value, by rank, on rank 0. Empty on other ranks. All workers call it."""
        ...

    def report(self, epoch: EpochMetrics) -> None:
        """Report one epoch to the user. All workers call it."""
        ...


class SoloWorker:
    """This process, without Ray: the sequential baseline."""

    rank = 0
    world = 1
    splits = False

    def __init__(self, device: torch.device, on_epoch: Callable[[EpochMetrics], None] | None = None) -> None:
        self.device = device
        self._on_epoch = on_epoch

    def wrap(self, model: nn.Module, parallel: Parallel, *, find_unused: bool = False) -> nn.Module:
        """Return the model itself, on the device."""
        del parallel, find_unused
        return model.to(self.device)

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """Return an empty context: there is nothing to wait for."""
        del wrapped
        return nullcontext()

    def full_tensor(self, value: Tensor) -> Tensor:
        """Return the value itself."""
        return value

    def distribute_tensor(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return the value itself."""
        del like
        return whole

    def total(self, value: Tensor) -> Tensor:
        """Return the value itself."""
        return value

    def gather(self, value: object) -> list[Any]:
        """Return the value in a list."""
        return [value]

    def report(self, epoch: EpochMetrics) -> None:
        """Pass the epoch to the caller."""
        if self._on_epoch:
            self._on_epoch(epoch)


class GroupWorker:
    """A rank of torch's process group: gradients averaged by DDP or FSDP, sums by all-reduce.

    Rank 0 hands each epoch to `on_epoch`.
    """

    def __init__(
        self, rank: int, world: int, device: torch.device, on_epoch: Callable[[EpochMetrics], None] | None = None
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._on_epoch = on_epoch
        self.splits = False

    def wrap(self, model: nn.Module, parallel: Parallel, *, find_unused: bool = False) -> nn.Module:
        """Return the model under DDP or FSDP; with one worker the model itself, on the device."""
        return model.to(self.device) if self.world == 1 else self.parallelize(model, parallel, find_unused=find_unused)

    def parallelize(self, model: nn.Module, parallel: Parallel, *, find_unused: bool = False) -> nn.Module:
        """Return the model under DDP or FSDP."""
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
            except (AssertionError, NotImplementedError, ValueError) as error:
                raise ConfigError(f"train.parallel fsdp cannot split this model ({error}); use ddp") from error
            self.splits = True
            return model
        model.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        return ddp.wrap(model, device_ids=devices, find_unused_parameters=find_unused)

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
        """Return the whole tensor, from all ranks' parts."""
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def distribute_tensor(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of what every rank has whole."""
        if not self.splits:
            return whole
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or whole.shape != like.shape:  # a buffer, or a single number
            return whole
        moved = whole.to(self.device)
        # None: every rank has read the whole tensor, so nothing is sent.
        return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def gather(self, value: object) -> list[Any]:
        """Return every rank's value, on rank 0."""
        values = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []

    def report(self, epoch: EpochMetrics) -> None:
        """Pass on the epoch.

        Not through `ray.train.report`: its controller takes one report per poll, every 2 s, and all ranks wait for it.
        """
        if self.rank == 0 and self._on_epoch:
            self._on_epoch(epoch)


def share_statistics(model: nn.Module, worker: Worker) -> None:
    """Give every worker the statistics of batch normalisation that rank 0 has, which its checkpoints hold.

    DDP does so before each forward pass in training, and so not after an epoch's last one. FSDP never does. The mean
    over ranks would be wrong: a rank whose part of a batch is empty computes an image that does not count.
    """
    buffers = batch_norm.statistics(model)
    if worker.world == 1 or not buffers:
        return
    flat = torch.cat([buffer.double().flatten() for buffer in buffers])
    whole = worker.total(flat if worker.rank == 0 else torch.zeros_like(flat))
    for buffer, values in zip(buffers, whole.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))


def device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device for this setting. `auto` is a GPU if there is one. Raises ResourcesError for a missing GPU."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ResourcesError("train.device cuda: this machine has no GPU that torch can use; use auto or cpu")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")
