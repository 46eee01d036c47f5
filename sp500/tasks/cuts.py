"""Whether the numbers of a training depend on how a batch is cut: tried on four windows before workers train.

They pass copies of the model several times. Where the answers differ, it draws numbers of its own; a layer of torch's
that does is turned off, as `eval()` does. Then they pass whole and in two halves, from equal seeds. Outputs, losses
and buffers are compared, and each layer's answers to equal inputs, so that the layer has a name. What only happens
with other windows, in the backward pass, or on GPUs is not seen. In float64 if the layers allow that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sp500.config import RunConfig
from sp500.data.batches import Batch, Fetching, parts
from sp500.data.samples import seeded
from sp500.data.windows import Dataset
from sp500.errors import SP500Error
from sp500.models import catalog, dropout
from sp500.models.batch_norm import BATCH_NORM
from sp500.seeding import derive
from sp500.training import evaluation
from sp500.training.optimizer import MAIN, Optimizers
from sp500.training.step import DTYPES
from sp500.training.task import BatchTransforming, Stepping, Task
from sp500.training.throughput import ModelCost
from sp500.training.trainer import Trainer
from sp500.training.transforms import Transforms
from sp500.training.worker import SoloWorker

log = logging.getLogger(__name__)

SAME = "no dependence on the number of workers seen: a batch and its halves give the same numbers"
DRAWS = "same in distribution: draws depend on the workers ({})"
HIDDEN = "draws depend on the workers ({}); whether numbers do so otherwise is not known"
DEPENDS = "depends on the number of workers ({})"
UNTRIED = "whether numbers depend on the number of workers was not tried: {}"
LARGE = UNTRIED.format("the model is large")
WINDOWS = 4
"""Windows that pass. Half of them are two: batch normalisation refuses one."""
LARGEST, MOST = 15_000_000, 1e9
"""Weights, and operations of a pass, up to which a model is tried: at most seconds on a CPU."""
REPEATS = 8
ROUNDING = 1e-4
TOLERANCE = {torch.float64: 1e-9, torch.float32: ROUNDING}
"""Of two answers, in units of the largest."""
ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, SP500Error)
"""Of a user's code on two windows, or of a model that cannot be copied."""


@dataclass(frozen=True)
class _Verdict:
    drawn: str = ""
    """The first place that draws numbers of its own."""
    depends: str = ""
    hidden: bool = False
    """Whether draws hide what the cut does."""


def try_cuts(task: Task, dataset: Dataset, config: RunConfig, cost: ModelCost | None, *, gpu: bool) -> Dataset:
    """Return the dataset with a note on what the numbers depend on; as it is for a training that cuts no batch.

    `cost`: of the model, if known; `gpu`: whether it trains on GPUs, where workers share the statistics of batch
    normalisation.
    """
    if not (config.num_workers > 1 or config.train.micro_batch) or catalog.is_estimator(config.model, dataset):
        return dataset
    if config.train.per_worker_batch and config.num_workers > 1:
        sentence = DEPENDS.format("train.per_worker_batch")
    elif cost and (cost.parameters > LARGEST or cost.flops_per_window * WINDOWS > MOST):
        sentence = LARGE
    else:
        with seeded(derive(config.train.seed, "cuts")):
            try:
                sentence = _try(task, dataset, config, known=cost is not None, gpu=gpu)
            except ERRORS as error:
                sentence = UNTRIED.format(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
    if sentence != SAME:
        log.warning("%s", sentence)
    return replace(dataset, card={**dataset.card, "notes": [*dataset.card.get("notes", []), sentence]})


def _try(task: Task, dataset: Dataset, config: RunConfig, *, known: bool, gpu: bool) -> str:
    """Return the sentence. `known`: whether the model is known to be small."""
    model = task.model(config, dataset)
    weights = sum(weight.numel() for weight in model.parameters())
    if not known and (weights > LARGEST or weights * dataset.train.rows[0].size * dataset.train.length > MOST):
        return LARGE
    batch, verdict = _try_windows(task, dataset, config)
    if not verdict.depends:
        synchronized = gpu and not config.train.micro_batch
        try:
            passes = _Passes(task, model, config, torch.float64, synchronized=synchronized).compare(batch)
        except RuntimeError:  # layers that are of another number type
            passes = _Passes(task, model, config, DTYPES[config.train.dtype], synchronized=synchronized).compare(batch)
        verdict = _Verdict(verdict.drawn or passes.drawn, passes.depends, verdict.hidden or passes.hidden)
    if verdict.depends:
        return DEPENDS.format(verdict.depends)
    return (HIDDEN if verdict.hidden else DRAWS).format(verdict.drawn) if verdict.drawn else SAME


def _try_windows(task: Task, dataset: Dataset, config: RunConfig) -> tuple[Batch, _Verdict]:
    """Return the windows as they pass, and what reading and changing them in halves does."""
    batches = evaluation.training_batches(dataset.train, SoloWorker(torch.device("cpu")))
    assert isinstance(batches, Fetching)
    numbers = torch.linspace(0, len(dataset.train) - 1, WINDOWS).long()
    changes = Transforms(task, batches, config.train.seed)

    def read(chosen: Tensor) -> Batch:
        x, y = batches.fetch(chosen, 1)
        targets = WINDOWS * max(y[0].numel(), 1)
        return Batch(x, y, chosen, len(chosen), len(chosen), WINDOWS, targets, numbers)

    def change(chosen: Tensor) -> Batch:
        return changes.apply(read(chosen), 1)

    batchwise = isinstance(task, BatchTransforming)
    methods = ", ".join(name for name in ("transform", "mix", "transform_batch") if hasattr(task, name))
    for place, stage, sees_batch in (("collate", read, True), (methods, change, batchwise)):
        whole, again, halves = stage(numbers), stage(numbers), [stage(half) for half in numbers.split(WINDOWS // 2)]
        if not _are_alike((whole.x, whole.y), (again.x, again.y), 0.0):
            return change(numbers), _Verdict(drawn=place, hidden=sees_batch)
        joined = torch.cat([half.x for half in halves]), torch.cat([half.y for half in halves])
        if not _are_alike((whole.x, whole.y), joined, ROUNDING):
            return whole, _Verdict(depends="transform_batch" if batchwise and stage is change else place)
    return whole, _Verdict()


def _are_alike(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], within: float) -> bool:
    pairs = zip(first, second, strict=True)
    return all(one.shape == other.shape and not _differ(one, other, within) for one, other in pairs)


@dataclass(frozen=True)
class _Call:
    """One call of a layer: projections [window, number] of what it got and gave."""

    name: str
    inputs: Tensor
    outputs: Tensor
    outer: bool
    """Whether no other layer calls it."""


@dataclass(frozen=True)
class _Seen:
    """Passes of a batch: calls of layers in the order in which they end, losses, and the buffers after each part."""

    calls: list[_Call]
    losses: Tensor
    buffers: list[dict[str, Tensor]]


@dataclass(frozen=True)
class _Difference:
    number: int
    """Of the call, or the number of calls."""
    place: str
    layer: nn.Module | None = None


class _LossesOnly(Trainer):
    """The trainer of a step of the task's own, which keeps the losses and updates nothing."""

    losses: list[Tensor]

    def update(self, loss_sum: Tensor, count: float, optimizer: str = MAIN) -> None:
        """Leave the weights as they are."""
        del optimizer
        self.losses.append(loss_sum.detach().double() / max(count, 1))


class _Copy:
    """A copy of a model in training, in which each call of a layer is noted."""

    def __init__(self, task: Task, model: nn.Module, config: RunConfig, dtype: torch.dtype) -> None:
        self.model, self._task, self._dtype, cpu = deepcopy(model), task, dtype, torch.device("cpu")
        source = dropout.Source(self.model, config.train.seed, dtype=dtype, device=cpu)
        source.start(1)
        self._trainer = _LossesOnly(self.model, Optimizers({}, own=False), source, config, SoloWorker(cpu))
        self._rows = 0
        self._calls: list[_Call] = []
        self._entered: list[Tensor] = []
        for name, module in self.model.named_modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(partial(self._leave, name))

    def take(self, part: Batch) -> tuple[list[_Call], list[Tensor]]:
        """Return the calls of layers, and the losses, of a pass."""
        self._calls, self._rows, self._trainer.losses = [], len(part.x), []
        x, y = (values.to(self._dtype) if values.is_floating_point() else values for values in (part.x, part.y))
        part = replace(part, x=x, y=y)
        self._trainer.begin(part, 0)
        if isinstance(self._task, Stepping):
            loss = self._task.step(self._trainer, part)
        else:
            with torch.no_grad():
                loss = self._task.loss(self.model(x), y)
        return self._calls, [*self._trainer.losses, loss.detach().double()]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        del module
        self._entered.append(_project((inputs, named), self._rows))

    def _leave(self, name: str, module: nn.Module, inputs: tuple[Any, ...], outputs: object) -> None:
        del module, inputs  # a layer may have changed its inputs in place
        entered = self._entered.pop()
        self._calls.append(_Call(name, entered, _project(outputs, self._rows), outer=not self._entered))


class _Passes:
    """Passes of a model, each by a copy of it."""

    def __init__(
        self, task: Task, model: nn.Module, config: RunConfig, dtype: torch.dtype, *, synchronized: bool
    ) -> None:
        self._task, self._config, self._dtype, self._model = task, config, dtype, deepcopy(model).to(dtype)
        for weights in self._model.parameters():
            if not weights.any():  # such as a head's: nothing would pass them
                nn.init.normal_(weights, 0, 0.1)
        for layer in self._model.modules():
            if isinstance(layer, dropout.Dropout):
                layer.rate = 0.0  # its masks are of each window, and take 20 ms to draw
        if synchronized:
            _turn_off(self._model, BATCH_NORM)

    def compare(self, batch: Batch) -> _Verdict:
        """Return what draws numbers of its own, and what depends on the cut."""
        drawn, cannot, whole, repeat = "", None, self._run([batch], 0), 1
        while repeat <= REPEATS and not cannot:
            difference = self._difference(whole, self._run([batch], repeat))
            if difference is None:
                repeat += 1
                continue
            drawn, layer = drawn or difference.place, difference.layer
            if layer is None or not layer.training or not type(layer).__module__.startswith("torch.nn."):
                cannot = difference
            else:
                _turn_off(self._model, type(layer))
                whole, repeat = self._run([batch], 0), 1
        if not whole.losses.isfinite().all() and not any(call.outer and call.outputs.numel() for call in whole.calls):
            raise ValueError("neither outputs nor losses can be compared")
        cuts = [False] * (self._config.num_workers > 1) + [True] * (self._config.train.micro_batch > 0)
        hidden = False
        for in_turn in cuts:
            difference = self._difference(whole, self._run(parts(batch, WINDOWS // 2), 0, in_turn=in_turn))
            if difference and (cannot is None or difference.number < cannot.number):
                return _Verdict(drawn, difference.place)
            hidden = hidden or difference is not None
        return _Verdict(drawn, hidden=hidden)

    def _run(self, batches: Sequence[Batch], seed: int, *, in_turn: bool = False) -> _Seen:
        """Return passes of parts of a batch, each from this seed: by a worker each, or `in_turn` by one."""
        runs, buffers = [], []
        copy = _Copy(self._task, self._model, self._config, self._dtype)
        for number, part in enumerate(batches):
            if number and not in_turn:
                copy = _Copy(self._task, self._model, self._config, self._dtype)
            with seeded(derive(self._config.train.seed, "cuts", seed)):
                runs.append(copy.take(part))
            if not in_turn or number == len(batches) - 1:
                buffers.append({name: values.double() for name, values in copy.model.named_buffers()})
        calls = [
            replace(same[0], inputs=_join(call.inputs for call in same), outputs=_join(call.outputs for call in same))
            for same in zip(*(calls for calls, _ in runs), strict=False)
        ]
        losses = [torch.stack(same).sum() for same in zip(*(losses for _, losses in runs), strict=False)]
        return _Seen(calls, torch.stack(losses), buffers)

    def _difference(self, first: _Seen, second: _Seen) -> _Difference | None:
        """Return the first layer that gives other answers to equal inputs, or another place; None if all is alike."""
        within, pairs = TOLERANCE[self._dtype], list(zip(first.calls, second.calls, strict=False))
        outer = any(one.outer and _differ(one.outputs, other.outputs, within) for one, other in pairs)
        if outer or len(first.losses) != len(second.losses) or _differ(first.losses, second.losses, within):
            for number, (one, other) in enumerate(pairs):
                same = one.inputs.numel() and one.inputs.shape == other.inputs.shape
                same = same and not _differ(one.inputs, other.inputs, within)
                if same and _differ(one.outputs, other.outputs, within):
                    layer = self._model.get_submodule(one.name)
                    return _Difference(number, f"layer {one.name or type(layer).__name__}", layer)
            return _Difference(len(pairs), "step" if isinstance(self._task, Stepping) else "loss")
        for after in second.buffers:
            for name, values in after.items():
                if _differ(first.buffers[0][name], values, within):
                    return _Difference(len(pairs), f"buffer {name}")
        return None


def _join(projections: Iterable[Tensor]) -> Tensor:
    """Return the projections of all parts; none if the parts have different numbers of them."""
    each = list(projections)
    return torch.cat(each) if len({len(part.T) for part in each}) == 1 else torch.empty(0)


def _turn_off(model: nn.Module, kinds: type | tuple[type, ...]) -> None:
    """Make layers of these classes, but not those inside them, work as they do outside of training."""
    for module in model.modules():
        if isinstance(module, kinds):
            module.training = False


def _project(value: object, rows: int) -> Tensor:
    """Return two numbers for each row [row, number] of tensors: no sums and no norms, which may be constants.

    Infinite numbers count as ones of another column.
    """
    projections = [torch.empty(rows, 0, dtype=torch.float64)]
    for tensor in _tensors(value):
        if len(tensor) == rows:  # another one is not of windows
            flat = tensor.detach().double().reshape(rows, -1)
            flat = torch.cat([flat.nan_to_num(0, 0, 0), (~flat.isfinite()).double()], dim=1)
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


def _differ(first: Tensor, second: Tensor, within: float) -> bool:
    """Return whether numbers differ, in units of the largest finite one. Those of other shapes cannot be compared."""
    if first.shape != second.shape or not first.numel():
        return False
    first, second = first.double(), second.double()
    largest = float(first.nan_to_num(0, 0, 0).abs().max())
    return not torch.allclose(first, second, rtol=0, atol=within * largest, equal_nan=True)
