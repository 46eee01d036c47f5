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
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from sp500.data.batches import Batch, Batches
from sp500.data.windows import Dataset
from sp500.machine.cores import usable_cores
from sp500.runs.record import EpochMetrics
from sp500.runs.trials import TrialResult
from sp500.seeding import derive
from sp500.training.loop import divergence_error
from sp500.training.step import DTYPES
from sp500.training.worker import device
from sp500.tuning.limits import TrialTimeout
from sp500.tuning.packing.adamw import MemberAdamW
from sp500.tuning.packing.layers import Dropout, Layers
from sp500.tuning.packing.member import Member
from sp500.tuning.space import Trial
from sp500.tuning.trial_data import TrialData


class Pack:
    """Members of the same shape, and their batched layers.

    `timeout`: seconds that a member's share of the time may be. `halving`: of the members there, at about 1/halving**2
    and 1/halving of the epochs, only the best 1/halving go on (successive halving, Jamieson and Talwalkar 2016).
    """

    layers: type[Layers] = Layers

    def __init__(
        self, data: TrialData, trials: Sequence[Trial], timeout: float | None = None, halving: int = 0
    ) -> None:
        self.config = trials[0].config
        torch.set_num_threads(self.config.train.threads or usable_cores())
        dataset = data.dataset
        self._data, self._timeout, self._halving = data, timeout, halving
        self._device = device(self.config.train.device)
        # Neighbours share a call of the optimiser.
        members = (Member(trial, pack=len(trials)) for trial in trials)
        self.members = sorted(members, key=lambda member: member.optimised)
        models = [self._model(member, dataset) for member in self.members]
        self._layers = self.layers(models)
        self._train = Batches(dataset.train, self._device)
        assert dataset.valid is not None
        self._valid = Batches(dataset.valid, self._device)
        self._dropout = Dropout([member.stream for member in self.members], self._layers.tensors[0])
        self._optimizer = MemberAdamW(self._layers.tensors, [member.optimised for member in self.members])

    def _model(self, member: Member, dataset: Dataset) -> list[nn.Linear]:
        """The member's initial layers, drawn as when it trains alone."""
        torch.manual_seed(derive(member.config.train.seed, "weights"))
        model = self._data.task.model(member.config, dataset)
        model.to(self._device, DTYPES[self.config.train.dtype])
        return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]

    def run(self) -> Iterator[list[TrialResult]]:
        """Train to the end; results come with the epoch that was their members' last."""
        if results := self._start():
            yield results
        while self.members:
            if results := self._epoch(self.members[0].progress.epoch + 1):
                yield results

    def _start(self) -> list[TrialResult]:
        """Make each untrained member the first candidate for its best epoch; the results of those that cannot be."""
        losses, outputs = self._validate()
        ended: dict[int, TrialResult] = {}
        for place, member in enumerate(self.members):
            if math.isfinite(losses[place]):
                member.start(losses[place], outputs[place])
            else:
                ended[place] = member.failure(str(divergence_error(member.config, 0, "validation loss")))
        return self._leave(ended)

    def _epoch(self, number: int) -> list[TrialResult]:
        """One epoch of all members; the results of those for which it was the last."""
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
        """Members that do not go on after this epoch, because too many did better so far."""
        rungs = {-(-self.config.train.epochs // self._halving**power) for power in (1, 2)} if self._halving else set()
        if epoch not in rungs:
            return []
        left = [place for place in range(len(self.members)) if place not in ended]
        # By trained epochs: where none beats the naive forecast, members with that one best loss would tie.
        left.sort(key=lambda place: self.members[place].trained_loss)
        return left[-(-len(left) // self._halving) :]

    def _train_epoch(self, number: int) -> tuple[list[float], int, int]:
        """One pass: each member's mean loss, windows, and the step reached."""
        train, data = self.config.train, self.config.data
        self._dropout.start(number)
        dropout = self._dropout if self._dropout.drops else None
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        samples, step = 0, self.members[0].progress.step
        for batch in self._train.epoch(number, self.config.batch_size, shuffle=data.shuffle_train, seed=data.seed):
            if step == train.max_steps > 0:
                break
            self._dropout.windows = batch.windows
            losses, gradients = self._layers.gradients(batch.x, partial(self._losses, batch), dropout)
            self._step(gradients)
            sums += losses * batch.total
            samples, step = samples + batch.total, step + 1
        return (sums / max(samples, 1)).tolist(), samples, step

    @torch.no_grad()
    def _validate(self) -> tuple[list[float], np.ndarray]:
        """Each member's mean loss on the validation windows, and its outputs there [member, window, output]."""
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        parts = []
        for batch in self._valid.in_order(self.config.batch_size):  # more would not stay in a core's cache
            parts.append(self._layers.outputs(batch.x))
            sums += self._losses(batch, parts[-1]) * batch.total
        return (sums / len(self._valid)).tolist(), torch.cat(parts, dim=1).cpu().numpy()

    def _losses(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Each member's mean loss over the batch [member] from outputs [member, batch, output]."""
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
        """Go on without the members at these places; gives their results."""
        if ended:
            places = [place for place in range(len(self.members)) if place not in ended]
            self.members = [self.members[place] for place in places]
            self._layers.keep(places)
            self._dropout.keep(places)
            self._optimizer.keep(self._layers.tensors, places)
        return list(ended.values())
