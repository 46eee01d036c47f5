"""Configs that differ in values alone, trained together as one model with batched weights.

Small models spend their time between operations, not in them: 18 MLPs of width 32 stepped together take a fifth of the
time of 18 alone. Members see the batches that every config of a search shares; each has its own initial weights,
dropout masks, learning rate, weight decay, clipping, patience and best epoch, drawn and decided as alone, so results
agree to rounding. A member that is done or diverges leaves the pack.

Linear models and MLPs pack. An LSTM does not: torch's own runs four times faster than one of batched products.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from sp500.config import RunConfig
from sp500.data.batches import Batch, Batches
from sp500.data.windows import Dataset
from sp500.machine.cores import usable_cores
from sp500.runs.record import EpochMetrics
from sp500.runs.trials import TrialResult
from sp500.seeding import derive
from sp500.training.loop import divergence_error
from sp500.training.state import TrainingState
from sp500.training.step import DTYPES
from sp500.training.worker import device
from sp500.tuning.limits import TrialTimeout
from sp500.tuning.packing.batch_model import BatchModel, Dropout, MemberAdamW
from sp500.tuning.sequential import build_failure, build_result
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import TrialData


@dataclass
class Member:
    """One config of a pack of `pack` configs."""

    trial: ConfigTrial
    pack: int
    progress: TrainingState = field(default_factory=TrainingState)
    seconds: float = 0.0
    """Its share of the pack's."""
    cpu_seconds: float = 0.0
    """Likewise."""
    output: np.ndarray | None = None
    """Of its best epoch, on the validation windows [window, output]."""

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.trial.config

    @property
    def optimised(self) -> tuple[float, float]:
        """The settings that members must have in common to share a call of the optimiser."""
        return self.config.lr, self.config.train.weight_decay

    @property
    def stream(self) -> tuple[int, float]:
        """The settings that decide its dropout masks."""
        return self.config.train.seed, self.config.model.dropout_rate

    @property
    def trained_loss(self) -> float:
        """Best validation loss over the epochs, without that of the untrained model."""
        return min(epoch.valid_loss for epoch in self.progress.epochs if epoch.valid_loss is not None)

    def start(self, valid_loss: float, output: np.ndarray) -> None:
        """Record the untrained model's loss and outputs on the validation windows."""
        self.progress.start(valid_loss)
        self.output = output.copy()  # a view would keep the outputs of the whole pack

    def record(self, epoch: EpochMetrics, step: int, output: np.ndarray) -> None:
        """Record an epoch and its outputs on the validation windows."""
        self.seconds += epoch.seconds
        if self.progress.record(epoch, step):
            self.output = output.copy()

    def failure(self, reason: str) -> TrialResult:
        """Return its result when it did not end well."""
        return build_failure(self.trial, reason, self.seconds).model_copy(update={"pack": self.pack})

    def result(self, data: TrialData) -> TrialResult:
        """Return its result."""
        progress = self.progress
        assert self.output is not None
        return build_result(
            data,
            self.trial,
            self.output,
            valid_loss=progress.best_loss if math.isfinite(progress.best_loss) else None,
            best_epoch=progress.best_epoch,
            epochs=len(progress.epochs),
            samples=sum(epoch.samples for epoch in progress.epochs),
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            pack=self.pack,
        )


class BatchTrainer:
    """Trains the members of a pack, which have the same shape, as one model.

    `timeout`: seconds that a member's share of the time may be. `halving`: of the members there, at about 1/halving**2
    and 1/halving of the epochs, only the best 1/halving continue (successive halving, Jamieson and Talwalkar 2016).
    """

    model: type[BatchModel] = BatchModel

    def __init__(
        self, data: TrialData, trials: Sequence[ConfigTrial], timeout: float | None = None, halving: int = 0
    ) -> None:
        self.config = trials[0].config
        torch.set_num_threads(self.config.train.threads or usable_cores())
        dataset = data.dataset
        self._data, self._timeout, self._halving = data, timeout, halving
        self._device = device(self.config.train.device)
        # Neighbours share a call of the optimiser.
        members = (Member(trial, pack=len(trials)) for trial in trials)
        self.members = sorted(members, key=lambda member: member.optimised)
        models = [self._build(member, dataset) for member in self.members]
        self._model = self.model(models)
        self._train = Batches(dataset.train, self._device)
        assert dataset.valid is not None
        self._valid = Batches(dataset.valid, self._device)
        self._dropout = Dropout([member.stream for member in self.members], self._model.tensors[0])
        self._optimizer = MemberAdamW(self._model.tensors, [member.optimised for member in self.members])

    def _build(self, member: Member, dataset: Dataset) -> list[nn.Linear]:
        """Build the member's initial layers, drawn as when it trains alone."""
        torch.manual_seed(derive(member.config.train.seed, "weights"))
        model = self._data.task.model(member.config, dataset)
        model.to(self._device, DTYPES[self.config.train.dtype])
        return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]

    def run(self) -> Iterator[list[TrialResult]]:
        """Train to the end; results are yielded in the epoch that was their members' last."""
        if results := self._start():
            yield results
        while self.members:
            if results := self._epoch(self.members[0].progress.epoch + 1):
                yield results

    def _start(self) -> list[TrialResult]:
        """Make each untrained member the first candidate for its best epoch. Returns results of those that cannot."""
        losses, outputs = self._validate()
        ended: dict[int, TrialResult] = {}
        for place, member in enumerate(self.members):
            if math.isfinite(losses[place]):
                member.start(losses[place], outputs[place])
            else:
                ended[place] = member.failure(str(divergence_error(member.config, 0, "validation loss")))
        return self._leave(ended)

    def _epoch(self, number: int) -> list[TrialResult]:
        """Train all members for one epoch. Returns the results of those for which it was the last."""
        started, cpu_started = time.perf_counter(), time.process_time()
        losses, samples, step = self._train_epoch(number)
        trained = time.perf_counter()
        valid, outputs = self._validate()
        share = 1 / len(self.members)
        ended: dict[int, TrialResult] = {}
        for place, member in enumerate(self.members):
            metrics = EpochMetrics(
                epoch=number,
                train_loss=losses[place],
                valid_loss=valid[place],
                samples=samples,
                train_seconds=(trained - started) * share,
                seconds=(time.perf_counter() - started) * share,
            )
            if not math.isfinite(losses[place]) or not math.isfinite(valid[place]):
                ended[place] = member.failure(str(divergence_error(member.config, number, "loss")))
                continue
            member.record(metrics, step, outputs[place])
            member.cpu_seconds += (time.process_time() - cpu_started) * share
            if member.progress.is_done(member.config):
                ended[place] = member.result(self._data)
            elif self._timeout and member.seconds > self._timeout:
                ended[place] = member.failure(str(TrialTimeout(self._timeout)))
        ended |= {place: self.members[place].result(self._data) for place in self._halve(number, set(ended))}
        return self._leave(ended)

    def _halve(self, epoch: int, ended: set[int]) -> list[int]:
        """Return members that end after this epoch, because too many did better so far."""
        rungs = {-(-self.config.train.epochs // self._halving**power) for power in (1, 2)} if self._halving else set()
        if epoch not in rungs:
            return []
        left = [place for place in range(len(self.members)) if place not in ended]
        # By trained epochs: if none beats the naive forecast, members with that one best loss would tie.
        left.sort(key=lambda place: self.members[place].trained_loss)
        return left[-(-len(left) // self._halving) :]

    def _train_epoch(self, number: int) -> tuple[list[float], int, int]:
        """Train for one pass. Returns each member's mean loss, windows, and the step reached."""
        train, data = self.config.train, self.config.data
        self._dropout.start(number)
        dropout = self._dropout if self._dropout.drops else None
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        samples, step = 0, self.members[0].progress.step
        for batch in self._train.epoch(number, self.config.batch_size, shuffle=data.shuffle_train, seed=data.seed):
            if step == train.max_steps > 0:
                break
            self._dropout.windows = batch.windows
            losses, gradients = self._model.gradients(batch.x, partial(self._losses, batch), dropout)
            self._step(gradients)
            sums += losses * batch.total
            samples, step = samples + batch.total, step + 1
        return (sums / max(samples, 1)).tolist(), samples, step

    @torch.no_grad()
    def _validate(self) -> tuple[list[float], np.ndarray]:
        """Return each member's mean loss on the validation windows, and its outputs there [member, window, output]."""
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        parts = []
        for batch in self._valid.in_order(self.config.batch_size):  # more would not stay in a core's cache
            parts.append(self._model.outputs(batch.x))
            sums += self._losses(batch, parts[-1]) * batch.total
        return (sums / len(self._valid)).tolist(), torch.cat(parts, dim=1).cpu().numpy()

    def _losses(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Return each member's mean loss over the batch [member] from outputs [member, batch, output]."""
        return torch.vmap(self._data.task.loss, in_dims=(0, None))(outputs, batch.y) / batch.total

    def _step(self, gradients: list[Tensor]) -> None:
        """Clip each member's gradient, and step."""
        parts = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
        norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
        for place, (member, norm) in enumerate(zip(self.members, norms.tolist(), strict=True)):
            clip = member.config.train.clip
            if clip and not norm + 1e-6 <= clip:
                factor = clip / (norm + 1e-6) if math.isfinite(norm) else math.nan
                for gradient in gradients:
                    gradient[place] *= factor
        self._optimizer.step(gradients)

    def _leave(self, ended: dict[int, TrialResult]) -> list[TrialResult]:
        """Continue without the members at these places. Returns their results."""
        if ended:
            places = [place for place in range(len(self.members)) if place not in ended]
            self.members = [self.members[place] for place in places]
            self._model.keep(places)
            self._dropout.keep(places)
            self._optimizer.keep(self._model.tensors, places)
        return list(ended.values())
