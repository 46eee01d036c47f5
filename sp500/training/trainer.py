"""What a task with a training step of its own works with: passes and updates that add up over workers.

Gradients are taken for the parameters of one optimiser and summed over the workers here, without DDP, which knows one
backward pass per step. So a step may update several optimisers, one after another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from sp500.config import RunConfig
from sp500.data.batches import Batch
from sp500.errors import ConfigError, SP500Error
from sp500.models import dropout
from sp500.seeding import numpy_generator
from sp500.training.optimizer import MAIN, Optimizers
from sp500.training.worker import Worker


class Trainer:
    """Passes and updates of one step on this worker's part of a batch."""

    def __init__(
        self, model: nn.Module, optimizers: Optimizers, source: dropout.Source, config: RunConfig, worker: Worker
    ) -> None:
        self.model = model
        """The task's model, whose parts `forward` takes."""
        self._optimizers, self._source, self._config, self._worker = optimizers, source, config, worker
        self._batch: Batch | None = None
        self.norms = torch.zeros((), device=worker.device)
        """Zero; not finite after an update whose gradient has a norm that overflows."""
        self._step = self._drawn = 0
        self._inside = False
        if worker.world > 1:
            for name, module in model.named_modules():
                module.register_forward_pre_hook(lambda _, __, name=name: self._check_call(name))

    def begin(self, batch: Batch, step: int) -> None:
        """Begin a step on a batch."""
        self._batch, self._step, self._drawn, self.norms = batch, step, 0, torch.zeros_like(self.norms)
        self._source.windows = batch.windows

    def forward(self, module: nn.Module, *inputs: Tensor) -> Tensor:
        """Return the outputs of the model, or a part of it such as `trainer.model.generator`."""
        self._inside = True
        try:
            with torch.autocast(self._worker.device.type, torch.bfloat16, enabled=self._config.train.amp != "none"):
                output: Tensor = module(*inputs)
        finally:
            self._inside = False
        return output.float() if output.dtype == torch.bfloat16 else output

    def draw_normal(self, *shape: int) -> Tensor:
        """Return normal numbers [batch, *shape], for each window the same whatever the number of workers."""
        assert self._batch is not None
        self._drawn += 1
        path = (self._config.train.seed, "step", self._step, self._drawn)
        numbers = [numpy_generator(*path, window).standard_normal(shape) for window in self._batch.windows.tolist()]
        return torch.from_numpy(np.stack(numbers)).to(self._worker.device, next(self.model.parameters()).dtype)

    def update(self, loss_sum: Tensor, count: float, optimizer: str = MAIN) -> None:
        """Update the weights of one optimiser by the gradient of the mean loss, and clip it as `train.clip` says.

        `loss_sum`: over this worker's windows; `count`: what the sum over all workers is divided by, `batch.total` for
        a loss per window. Other weights keep their gradients.
        """
        assert self._batch is not None
        of = self._optimizers[optimizer]
        weights = [weight for group in of.param_groups for weight in group["params"] if weight.requires_grad]
        # A worker without windows computes one that does not count.
        scaled = loss_sum * (bool(self._batch.count) / max(count, 1))
        gradients = torch.autograd.grad(scaled, weights, allow_unused=True)
        for weight, gradient in zip(weights, self._add_up(weights, gradients), strict=True):
            weight.grad = gradient
        if self._config.train.clip:
            # As in the usual step: a norm that overflows, which clips the gradient to nothing, has to show.
            self.norms = self.norms + 0.0 * nn.utils.clip_grad_norm_(weights, self._config.train.clip)
        of.step()

    def _add_up(self, weights: list[Tensor], gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Return gradients summed over the workers; None for weights that no worker used."""
        mine = list(gradients)
        if self._worker.world == 1:
            return mine
        used = torch.tensor([gradient is not None for gradient in mine], dtype=weights[0].dtype)
        parts = [
            (torch.zeros_like(weight) if gradient is None else gradient).flatten()
            for weight, gradient in zip(weights, mine, strict=True)
        ]
        whole = self._worker.total(torch.cat([used.to(weights[0].device), *parts]))
        sums = whole[len(mine) :].split([weight.numel() for weight in weights])
        return [
            total.view_as(weight) if users else None
            for users, weight, total in zip(whole[: len(mine)].tolist(), weights, sums, strict=True)
        ]

    def _check_call(self, name: str) -> None:
        """Raise ConfigError for a pass in training that `forward` did not begin."""
        if not self._inside and self.model.training:
            called = f"trainer.model.{name}" if name else "trainer.model"
            raise ConfigError(
                f"step calls {called}(...) past the trainer, so that masks and number types would differ between "
                f"workers; write trainer.forward({called}, ...)"
            )

    def compare_weights(self) -> None:
        """Check that all workers have equal weights. Raises SP500Error on all of them if not."""
        digest = hashlib.sha256()
        for weight in self.model.parameters():
            digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
        mine = torch.tensor(int.from_bytes(digest.digest()[:6]), dtype=torch.float64, device=self._worker.device)
        first = self._worker.total(mine if self._worker.rank == 0 else torch.zeros_like(mine))
        if self._worker.total((mine != first).double()):
            raise SP500Error(
                "workers have different weights after this epoch: the task's step updates by something that differs "
                "between them; update only with trainer.update, and draw only with trainer.draw_normal"
            )
