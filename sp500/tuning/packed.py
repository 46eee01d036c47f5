"""Configs that differ in values alone, trained together as one model with batched weights.

Small models spend their time between operations, not in them: 18 MLPs of width 32 stepped together take a fifth of the
time of 18 alone. Members see the batches that every config of a search shares; each has its own initial weights,
dropout masks, learning rate, weight decay, clipping, patience and best epoch, drawn and decided as alone, so results
agree to rounding. A member that is done or diverges leaves the pack.

Linear models and MLPs pack. An LSTM does not: torch's own runs four times faster than one of batched products.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn

from sp500.data.batches import Batches
from sp500.data.windows import Dataset
from sp500.models import catalog
from sp500.runs.record import EpochMetrics
from sp500.seeding import derive
from sp500.training.loop import DTYPES, EVAL_BATCH, diverged
from sp500.training.optimizer import AdamW
from sp500.training.worker import device
from sp500.tuning.ledger import TrialResult
from sp500.tuning.limits import TrialTimeout
from sp500.tuning.material import Material
from sp500.tuning.member import Member
from sp500.tuning.space import Trial

AVERAGES = ("exp_avg", "exp_avg_sq")
Streams = dict[tuple[int, float], torch.Generator]


class Pack:
    """Members with weights [member, input, output] and biases [member, 1, output] per layer.

    `timeout`: seconds that a member's share of the time may be. `halving`: of the members there, at about 1/halving**2
    and 1/halving of the epochs, only the best 1/halving go on (successive halving, Jamieson and Talwalkar 2016).
    """

    def __init__(self, made: Material, trials: Sequence[Trial], timeout: float | None = None, halving: int = 0) -> None:
        self.config = trials[0].config
        torch.set_num_threads(self.config.train.threads or os.cpu_count() or 1)
        dataset = made.dataset
        self._made, self._timeout, self._halving = made, timeout, halving
        self._device = device(self.config.train.device)
        # Neighbours share a call of the optimiser.
        members = (Member(trial, pack=len(trials)) for trial in trials)
        self.members = sorted(members, key=lambda member: member.optimised)
        models = [self._model(member, dataset) for member in self.members]
        self._layers = [_stacked([linears[place] for linears in models]) for place in range(len(models[0]))]
        self._train = Batches(dataset.train, self._device)
        assert dataset.valid is not None
        self._valid = Batches(dataset.valid, self._device)
        self._optimizer = self._new_optimizer()

    def _model(self, member: Member, dataset: Dataset) -> list[nn.Linear]:
        """The member's initial layers, drawn as when it trains alone."""
        torch.manual_seed(derive(member.config.train.seed, "weights"))
        window, outputs = dataset.train.length, self._made.task.num_outputs(dataset)
        model = catalog.build(member.config.model, window=window, features=dataset.features, outputs=outputs)
        model.to(self._device, DTYPES[self.config.train.dtype])
        return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]

    @property
    def _weights(self) -> list[Tensor]:
        return [tensor for layer in self._layers for tensor in layer]

    def _new_optimizer(self) -> AdamW:
        """One parameter group per learning rate and weight decay, over slices of the packed weights."""
        groups, first = [], 0
        for (lr, decay), alike in groupby(self.members, key=lambda member: member.optimised):
            end = first + len(list(alike))
            slices = [weight.detach()[first:end].requires_grad_() for weight in self._weights]
            groups.append({"params": slices, "lr": lr, "weight_decay": decay})
            first = end
        return AdamW(groups, fused=True)

    def run(self) -> Iterator[list[TrialResult]]:
        """Train to the end; results come with the epoch that was their members' last."""
        while self.members:
            if ended := self._epoch(self.members[0].progress.epoch + 1):
                yield ended

    def _epoch(self, number: int) -> list[TrialResult]:
        """One epoch of all members; the results of those for which it was the last."""
        started = time.perf_counter()
        losses, samples, step = self._trained(number)
        trained = time.perf_counter()
        valid, outputs = self._validated()
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
                ended[place] = member.failed(str(diverged(member.config, number, "loss")))
                continue
            member.record(metrics, step, outputs[place])
            if member.progress.done(member.config):
                ended[place] = member.result(self._made)
            elif self._timeout and member.seconds > self._timeout:
                ended[place] = member.failed(str(TrialTimeout(self._timeout)))
        ended |= {place: self.members[place].result(self._made) for place in self._halved(number, set(ended))}
        if ended:
            self._keep([place for place in range(len(self.members)) if place not in ended])
        return list(ended.values())

    def _halved(self, epoch: int, ended: set[int]) -> list[int]:
        """Members that do not go on after this epoch, because too many did better so far."""
        rungs = {-(-self.config.train.epochs // self._halving**power) for power in (1, 2)} if self._halving else set()
        if epoch not in rungs:
            return []
        left = [place for place in range(len(self.members)) if place not in ended]
        left.sort(key=lambda place: self.members[place].progress.best_loss)
        return left[-(-len(left) // self._halving) :]

    def _trained(self, number: int) -> tuple[list[float], int, int]:
        """One pass: each member's mean loss, windows, and the step reached."""
        train, data = self.config.train, self.config.data
        streams = self._streams(number)
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        samples, step = 0, self.members[0].progress.step
        for batch in self._train.epoch(number, self.config.batch_size, shuffle=data.shuffle_train, seed=data.seed):
            if step == train.max_steps > 0:
                break
            losses = self._losses(self._forward(batch.x, streams), batch.y)
            for weight in self._weights:
                weight.grad = None
            (losses.sum() / batch.total).backward()
            self._step()
            sums += losses.detach()
            samples, step = samples + batch.total, step + 1
        return (sums / max(samples, 1)).tolist(), samples, step

    @torch.no_grad()
    def _validated(self) -> tuple[list[float], np.ndarray]:
        """Each member's mean loss on the validation windows, and its outputs there [member, window, output]."""
        sums = torch.zeros(len(self.members), dtype=torch.float64, device=self._device)
        parts = []
        for batch in self._valid.in_order(EVAL_BATCH):
            parts.append(self._forward(batch.x))
            sums += self._losses(parts[-1], batch.y)
        return (sums / len(self._valid)).tolist(), torch.cat(parts, dim=1).cpu().numpy()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over the batch of each member's loss [member] from outputs [member, batch, output]."""
        return torch.vmap(self._made.task.loss, in_dims=(0, None))(outputs, targets)

    def _streams(self, epoch: int) -> Streams:
        """A generator per seed and rate: members that share both draw the same masks, as they would alone."""
        return {
            key: torch.Generator(self._device).manual_seed(derive(key[0], "dropout", epoch, 0))
            for key in dict.fromkeys(member.stream for member in self.members)
            if key[1]
        }

    def _forward(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        """Outputs [member, batch, output] of windows [batch, window, feature]; with streams, with dropout."""
        values = x.flatten(1).expand(len(self.members), -1, -1)
        for place, (weight, bias) in enumerate(self._layers):
            values = torch.baddbmm(bias, values, weight)
            if place < len(self._layers) - 1:
                values = values.relu_()
                if streams:
                    values = values * self._masks(values, streams)
        return values

    def _masks(self, values: Tensor, streams: Streams) -> Tensor:
        """Dropout's factors [member, batch, width]; the last of those drawn are ones, for members without dropout."""
        drawn = {key: place for place, key in enumerate(streams)}
        masks = values.new_ones(len(drawn) + 1, *values.shape[1:])
        for (key, place), generator in zip(drawn.items(), streams.values(), strict=True):
            masks[place].bernoulli_(1 - key[1], generator=generator).div_(1 - key[1])
        chosen = [drawn.get(member.stream, len(drawn)) for member in self.members]
        return masks[torch.tensor(chosen, device=values.device)]

    @torch.no_grad()
    def _step(self) -> None:
        """Clip each member's gradient, and step."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        parts = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
        norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)
        for place, (member, norm) in enumerate(zip(self.members, norms.tolist(), strict=True)):
            clip = member.config.train.clip
            if clip and not norm + 1e-6 <= clip:
                for gradient in gradients:
                    gradient[place] *= clip / (norm + 1e-6)
        first = 0
        for group in self._optimizer.param_groups:
            end = first + len(group["params"][0])
            for part, gradient in zip(group["params"], gradients, strict=True):
                part.grad = gradient[first:end]
            first = end
        self._optimizer.step()

    def _keep(self, places: list[int]) -> None:
        """Go on with some of the members."""
        state = self._optimizer.state
        groups = [group["params"] for group in self._optimizer.param_groups]
        averages = [
            {name: torch.cat([state[params[place]][name] for params in groups])[places] for name in AVERAGES}
            for place in range(len(self._weights))
        ]
        step = state[groups[0][0]]["step"]
        self.members = [self.members[place] for place in places]
        self._layers = [_leaves(*(tensor.detach()[places] for tensor in layer)) for layer in self._layers]
        if not places:
            return
        self._optimizer, first = self._new_optimizer(), 0
        for group in self._optimizer.param_groups:
            end = first + len(group["params"][0])
            for part, average in zip(group["params"], averages, strict=True):
                kept = {name: values[first:end].clone() for name, values in average.items()}
                self._optimizer.state[part] = {"step": step.clone(), **kept}
            first = end


def _stacked(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    return _leaves(
        torch.stack([layer.weight.detach().T for layer in layers]).contiguous(),
        torch.stack([layer.bias.detach() for layer in layers])[:, None],
    )


def _leaves(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return weight.requires_grad_(), bias.requires_grad_()
