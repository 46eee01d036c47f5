"""Whether the numbers of a training depend on how a batch is cut: tried on four windows before workers train.

They pass a model twice. Where the answers differ, it draws numbers of its own, and the layer that draws is turned off
as `eval()` does. Then they pass whole and in two halves. Each layer's answers to equal inputs are compared, so that the
layer has a name. The model is made for this alone, in float64 if its layers allow that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sp500.config import RunConfig
from sp500.data.batches import Batch, Fetching, parts
from sp500.data.samples import seeded
from sp500.data.windows import Dataset
from sp500.models import catalog, dropout
from sp500.models.batch_norm import BATCH_NORM
from sp500.seeding import derive
from sp500.training import evaluation
from sp500.training.optimizer import Optimizers
from sp500.training.step import DTYPES
from sp500.training.task import BatchTransforming, Stepping, Task
from sp500.training.throughput import ModelCost
from sp500.training.trainer import Trainer
from sp500.training.transforms import Transforms
from sp500.training.worker import SoloWorker

log = logging.getLogger(__name__)

SAME = "same numbers for any number of workers"
DRAWS = "same in distribution: draws depend on the workers ({})"
DEPENDS = "depends on the number of workers ({})"
UNTRIED = "whether numbers depend on the number of workers was not tried: the model is large"
WINDOWS = 4
"""Windows that pass. Half of them are two: batch normalisation refuses one."""
LARGEST, LONGEST = 30_000_000, 3e10
"""Weights, and operations per window, up to which a model is tried: seconds on a CPU."""
ROUNDING = 1e-4
TOLERANCE = {torch.float64: 1e-9, torch.float32: ROUNDING}
"""Of two answers, in units of the largest."""


def try_cuts(task: Task, dataset: Dataset, config: RunConfig, cost: ModelCost | None, *, gpu: bool) -> Dataset:
    """Return the dataset with a note on what the numbers depend on; as it is for a training that cuts no batch.

    `cost`: of the model, if known; `gpu`: whether it trains on GPUs, where workers share the statistics of batch
    normalisation.
    """
    if not (config.num_workers > 1 or config.train.micro_batch) or catalog.is_estimator(config.model, dataset):
        return dataset
    sentence = UNTRIED
    if config.train.per_worker_batch and config.num_workers > 1:
        sentence = DEPENDS.format("train.per_worker_batch")
    elif cost is None or (cost.parameters <= LARGEST and cost.flops_per_window <= LONGEST):
        with seeded(derive(config.train.seed, "cuts")):
            sentence = _try(task, dataset, config, synchronized=gpu and not config.train.micro_batch)
    if sentence != SAME:
        log.warning("%s", sentence)
    return replace(dataset, card={**dataset.card, "notes": [*dataset.card.get("notes", []), sentence]})


def _try(task: Task, dataset: Dataset, config: RunConfig, *, synchronized: bool) -> str:
    def passes(dtype: torch.dtype) -> _Passes:
        model = task.model(config, dataset)
        if synchronized:
            _turn_off(model, BATCH_NORM)
        return _Passes(task, model, config, dtype)

    batch, drawn, depends = _try_transforms(task, dataset, config)
    try:
        layer, differs = passes(torch.float64).compare(batch)
    except RuntimeError:  # layers that are of another number type
        layer, differs = passes(DTYPES[config.train.dtype]).compare(batch)
    if depends or differs:
        return DEPENDS.format(depends or differs)
    return DRAWS.format(drawn or layer) if drawn or layer else SAME


def _try_transforms(task: Task, dataset: Dataset, config: RunConfig) -> tuple[Batch, str, str]:
    """Return the windows as they pass, and the methods that draw by themselves, or change halves otherwise."""
    batches = evaluation.training_batches(dataset.train, SoloWorker(torch.device("cpu")))
    assert isinstance(batches, Fetching)
    numbers = torch.linspace(0, len(dataset.train) - 1, WINDOWS).long()
    x, y = batches.fetch(numbers, 1)
    batch = Batch(x, y, numbers, WINDOWS, WINDOWS, WINDOWS, max(y.numel(), 1), numbers)
    changes = Transforms(task, batches, config.train.seed)
    whole, again = changes.apply(batch, 1), changes.apply(batch, 1)
    halves = [changes.apply(half, 1) for half in parts(batch, WINDOWS // 2)]
    if not (_are_alike(whole.x, again.x, 0.0) and _are_alike(whole.y, again.y, 0.0)):
        methods = [name for name in ("transform", "mix", "transform_batch") if hasattr(task, name)]
        return whole, ", ".join(methods), ""
    x, y, within = torch.cat([half.x for half in halves]), torch.cat([half.y for half in halves]), ROUNDING
    alike = _are_alike(whole.x, x, within) and _are_alike(whole.y, y, within)
    changed = "transform_batch" if isinstance(task, BatchTransforming) else "transform"
    return whole, "", "" if alike else changed


@dataclass(frozen=True)
class _Call:
    """One call of a layer: projections [window, number] of what it got and gave."""

    name: str
    module: nn.Module
    inputs: Tensor
    outputs: Tensor
    outer: bool
    """Whether no other layer calls it."""


class _KeptWeights(Trainer):
    """The trainer of a step of the task's own, which updates nothing."""

    def update(self, loss_sum: Tensor, count: float, optimizer: str = "main") -> None:
        """Leave the weights as they are."""


class _Passes:
    """Passes of a model in training, in which each call of a layer is noted."""

    def __init__(self, task: Task, model: nn.Module, config: RunConfig, dtype: torch.dtype) -> None:
        self._model, self._dtype, cpu = model.to(dtype), dtype, torch.device("cpu")
        with torch.no_grad():
            for weights in model.parameters():
                if not weights.any():  # such as a head's: nothing would pass them
                    weights.normal_(0, 0.1)
        for layer in model.modules():
            if isinstance(layer, dropout.Dropout):
                layer.rate = 0.0  # its masks are of each window, and take 20 ms to draw
        self._kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._source = dropout.Source(model, config.train.seed, dtype=dtype, device=cpu)
        self._source.start(1)
        self._step = task.step if isinstance(task, Stepping) else None
        self._trainer = _KeptWeights(model, Optimizers({}, own=False), self._source, config, SoloWorker(cpu))
        self._rows = 0
        self._calls: list[_Call] = []
        self._entered: list[Tensor] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(partial(self._leave, name))

    def compare(self, batch: Batch) -> tuple[str, str]:
        """Return the first place that draws numbers of its own, and the first whose numbers depend on the cut."""
        drawn, first, halves = "", self._run([batch]), parts(batch, WINDOWS // 2)
        while difference := self._difference(first, self._run([batch])):
            place, layer = difference
            drawn = drawn or place
            if layer is None or not layer.training:
                return drawn, ""
            _turn_off(self._model, type(layer))
            first = self._run([batch])
        difference = self._difference(first, self._run(halves))
        return drawn, difference[0] if difference else ""

    def _run(self, batches: Sequence[Batch]) -> list[_Call]:
        """Return the calls of a pass in training, in the order in which they end, of all batches together."""
        runs = []
        for part in batches:
            for buffer, kept in self._kept:
                buffer.copy_(kept)
            self._calls, self._rows = [], len(part.x)
            x, y = (values.to(self._dtype) if values.is_floating_point() else values for values in (part.x, part.y))
            self._trainer.begin(replace(part, x=x, y=y), 0)
            if self._step:
                self._step(self._trainer, replace(part, x=x, y=y))
            else:
                self._model(x)
            runs.append(self._calls)
        return [
            replace(
                calls[0],
                inputs=torch.cat([call.inputs for call in calls]),
                outputs=torch.cat([call.outputs for call in calls]),
            )
            for calls in zip(*runs, strict=False)
        ]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        del module
        self._entered.append(_project((inputs, named), self._rows))

    def _leave(self, name: str, module: nn.Module, inputs: tuple[Any, ...], outputs: object) -> None:
        del inputs  # a layer may have changed them in place
        entered = self._entered.pop()
        self._calls.append(_Call(name, module, entered, _project(outputs, self._rows), outer=not self._entered))

    def _difference(self, first: list[_Call], second: list[_Call]) -> tuple[str, nn.Module | None] | None:
        """Return the first layer that gives other answers to equal inputs; None if the model's answers are alike."""
        within, pairs = TOLERANCE[self._dtype], list(zip(first, second, strict=False))
        if all(_are_alike(one.outputs, other.outputs, within) for one, other in pairs if one.outer):
            return None
        for one, other in pairs:
            alike = _are_alike(one.inputs, other.inputs, within)
            if alike and not _are_alike(one.outputs, other.outputs, within):
                return f"layer {one.name or type(one.module).__name__}", one.module
        return "step" if self._step else f"layer {type(self._model).__name__}", None


def _turn_off(model: nn.Module, kinds: type | tuple[type, ...]) -> None:
    """Make layers of these classes, but not those inside them, work as they do outside of training."""
    for module in model.modules():
        if isinstance(module, kinds):
            module.training = False


def _project(value: object, rows: int) -> Tensor:
    """Return two numbers for each row [row, number] of tensors: no sums and no norms, which may be constants."""
    projections = [torch.empty(rows, 0, dtype=torch.float64)]
    for tensor in _tensors(value):
        if len(tensor) == rows:  # another one is not of windows
            flat = tensor.detach().double().reshape(rows, -1)
            angles = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64)
            projections.append(torch.stack([flat @ angles.cos(), flat @ angles.sin()], dim=1))
    return torch.cat(projections, dim=1)


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors with rows, at any depth."""
    if isinstance(value, Tensor):
        yield from [value] if value.ndim else []
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def _are_alike(first: Tensor, second: Tensor, within: float) -> bool:
    """Return whether numbers are alike. Those of other shapes cannot be compared, and count as alike."""
    if first.shape != second.shape or not first.numel():
        return True
    largest = float(first.double().abs().max())
    return torch.allclose(first.double(), second.double(), rtol=0, atol=within * largest, equal_nan=True)
