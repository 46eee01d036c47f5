"""One step of training: the gradient of a global batch, and the update of the weights.

The gradient is that of the mean loss over the targets of the global batch, however that is cut: over workers, and over
the micro-batches of a worker. Each part's loss is a sum and is divided by the targets of all parts; a mean of means
would weigh parts of unequal size wrongly.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from sp500.config import RunConfig, TrainConfig
from sp500.data.batches import Batch, parts
from sp500.errors import ConfigError
from sp500.models import dropout, stack
from sp500.training import ddp
from sp500.training.average import PREFIX, Average
from sp500.training.optimizer import Optimizers
from sp500.training.task import Scheduled, Stepping, Task
from sp500.training.trainer import Trainer
from sp500.training.worker import Worker

DTYPES = {"float32": torch.float32, "float64": torch.float64}
FALL = 0.2
"""Share of the steps after the warm-up in which wsd falls (warm-up, stable, decay: Hu et al. 2024, arXiv:2404.06395).
"""
RISE, START, END = 0.3, 25.0, 1e4
"""Of onecycle, as torch's OneCycleLR (Smith and Topin 2018, arXiv:1708.07120): the share of steps in which the rate
rises if there is no warm-up, its highest over its first value, and its first over its last."""
MOMENTUM = 0.85, 0.95
"""Of onecycle: at the highest rate, and at both ends."""


class Stepper:
    """Model and optimiser of a training of `steps` steps. `model` is changed in place."""

    def __init__(self, task: Task, model: nn.Module, config: RunConfig, worker: Worker, steps: int) -> None:
        train = config.train
        self._task, self._config, self._worker, self._steps = task, config, worker, steps
        if train.recompute:
            stack.recompute(model)
        if train.compile:
            ddp.import_compiler()
        # Asked once: of a protocol, each question takes longer than a small layer's pass.
        self._lr_factor = task.lr_factor if isinstance(task, Scheduled) else None
        self._step = task.step if isinstance(task, Stepping) else None
        if self._step:
            check_own_step(train)
        # A user's model may have layers that some batches do not use, which DDP has to look for in every step.
        find_unused = bool(config.own_task or config.model.own)
        self._wrapped = (
            model.to(worker.device) if self._step else worker.wrap(model, train.parallel, find_unused=find_unused)
        )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.dropout = dropout.Source(model, train.seed, dtype=DTYPES[train.dtype], device=worker.device)
        if train.compile:
            self.dropout.disable_compile()
            self._wrapped = torch.compile(self._wrapped)  # type: ignore[assignment] # it is a module
        own = (type(task).optimizer, type(task).optimizers) != (Task.optimizer, Task.optimizers)
        self.average = Average(model, train.ema) if train.ema else None
        self.optimizers = Optimizers(task.optimizers(model, config), own=own)
        if self.average and PREFIX.rstrip("/") in self.optimizers.named:
            raise ConfigError("optimizer name 'weights': train.ema uses it in checkpoints; rename the optimizer")
        self.trainer = Trainer(model, self.optimizers, self.dropout, config, worker) if self._step else None

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        self.dropout.start(epoch)
        self._wrapped.train()

    def take(self, batch: Batch, step: int) -> Tensor:
        """Update the weights. Returns the loss summed over this rank's windows. `step` counts from 0."""
        self._schedule(step)
        if self.trainer and self._step:
            self.trainer.begin(batch, step)
            loss_sum = (self._step(self.trainer, batch).detach() + self.trainer.norms) * bool(batch.count)
        else:
            loss_sum = self._take(batch)
        if self.average:
            self.average.update(step)
        return loss_sum

    def _take(self, batch: Batch) -> Tensor:
        """Update by the gradient of the task's loss, by all optimisers at once."""
        train = self._config.train
        for optimizer in self.optimizers.named.values():
            optimizer.zero_grad(set_to_none=True)
        *first, last = parts(batch, train.micro_batch)
        losses = []
        for part in first:
            with self._worker.accumulating(self._wrapped):
                losses.append(self._backward(part))
        loss_sum = self._backward(last)
        if losses:
            loss_sum = torch.stack([*losses, loss_sum]).double().sum()
        if train.clip:
            norm = self._worker.full_tensor(nn.utils.clip_grad_norm_(self._parameters, train.clip))
            # A gradient whose norm overflows is clipped to nothing: 0 x infinity makes the loss show it.
            loss_sum = loss_sum + 0.0 * norm
        for optimizer in self.optimizers.named.values():
            optimizer.step()
        return loss_sum

    def judged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that are judged and kept."""
        return self.average.applied() if self.average else nullcontext()

    def own(self) -> dict[str, Tensor]:
        """Return the weights themselves where others are judged."""
        return self.average.dump() if self.average else {}

    def _schedule(self, step: int) -> None:
        """Set learning rate and momentum of a step."""
        train = self._config.train
        if self._lr_factor:
            self.optimizers.scale_rates(self._lr_factor(step, self._steps))
        elif train.schedule != "constant" or train.warmup:
            self.optimizers.scale_rates(lr_factor(train, step, self._steps))
        if train.schedule == "onecycle":
            self.optimizers.set_momentum(one_cycle(train, step, self._steps, (MOMENTUM[1], *MOMENTUM)))

    def _backward(self, part: Batch) -> Tensor:
        self.dropout.windows = part.windows
        if self._config.train.amp == "none":
            output = self._wrapped(part.x)
        else:
            with torch.autocast(self._worker.device.type, torch.bfloat16):
                output = self._wrapped(part.x)
            output = output.float()
        loss = self._task.loss(output, part.y)
        # It still runs backward: the other ranks wait there for its gradients.
        if not part.count:
            loss = loss * 0.0
        # Ranks' gradients are averaged; times world over total makes that the mean over the global batch.
        (loss * (self._worker.world / max(part.targets, 1))).backward()
        return loss.detach()


def check_own_step(train: TrainConfig) -> None:
    """Raise ConfigError for settings that a task with a step of its own cannot have."""
    unfit = {
        "parallel fsdp": (train.parallel == "fsdp", "FSDP gathers weights around one pass of the whole model"),
        "micro_batch": (train.micro_batch > 0, "a step sees all of its worker's windows"),
        "compile": (train.compile, "a step calls parts of the model"),
    }
    for name, (given, reason) in unfit.items():
        if given:
            raise ConfigError(f"train.{name} does not go with a task that has its own step: {reason}; leave it out")


def lr_factor(train: TrainConfig, step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step, counted from 0, of `steps` (1 or more). Its maximum is 1."""
    if train.schedule == "onecycle":
        return one_cycle(train, step, steps, (1 / START, 1.0, 1 / START / END))
    warm = math.ceil(round(train.warmup * steps, 6))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(steps - warm - 1, 1)
    fallen = {
        "constant": 0.0,
        "linear": done,
        "cosine": (1 - math.cos(math.pi * done)) / 2,
        "wsd": max(done - (1 - FALL), 0.0) / FALL,
    }
    return 1 - (1 - train.lr_end) * fallen[train.schedule]


def one_cycle(train: TrainConfig, step: int, steps: int, values: tuple[float, float, float]) -> float:
    """Return the value of a step on two halves of a cosine between three values: the second is where the rise ends."""
    top = (train.warmup or RISE) * steps - 1
    if top > 0 and step <= top:
        start, end, done = values[0], values[1], step / top
    else:
        start, end, done = values[1], values[2], (step - max(top, 0)) / max(steps - 1 - max(top, 0), 1)
    return end + (start - end) / 2 * (math.cos(math.pi * done) + 1)
