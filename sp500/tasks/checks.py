"""Checks of a user's task or model that a signature cannot express: shapes, number types, a sum as the loss, the names
of the metrics, weights that can be trained, saved and loaded. All of it is tried on a few windows, so that a mistake
costs seconds and no trained model.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from sp500.config import RunConfig
from sp500.data.samples import Samples
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.formatting import reference_name
from sp500.models import catalog, weights
from sp500.runs.results import Improvement
from sp500.training import evaluation
from sp500.training.checkpoint import pack
from sp500.training.step import DTYPES, Stepper
from sp500.training.task import Task
from sp500.training.transforms import Transforms
from sp500.training.worker import SoloWorker

log = logging.getLogger(__name__)

FEW = 3
"""Windows that the loss is tried on."""
TOLERANCE = 1e-5
"""Of an answer, in units of the largest."""


def check(task: Task, config: RunConfig, dataset: object) -> Dataset:
    """Check that everything fits, and return the dataset. Raises DataError with the part and what it should be."""
    where = f"task {reference_name(config.task)}"
    if not isinstance(dataset, Dataset):
        raise DataError(f"{where}: prepare returned {type(dataset).__name__}, expected sp500.Dataset")
    for name, part in (("train", dataset.train), ("valid", dataset.valid), ("test", dataset.test)):
        if part is not None:
            _check_part(f"{where}: {name}", part, dataset.train, config.train.dtype)
    estimated = catalog.is_estimator(config.model, dataset)
    model = _stand_in(config, dataset) if estimated else _model(where, task, config, dataset)
    for part in filter(None, (dataset.train, dataset.valid, dataset.test)):
        _check_loss(where, task, config, dataset, model, part=part)
    if config.own_task:
        _check_metrics(where, task, dataset, model)
    if estimated:
        return dataset  # what is fitted is compared with what its files give once it is
    _check_memory(where, model)
    _check_step(where, task, config, dataset, model)
    _check_saved(where, task, config, dataset, model)
    return dataset


def _check_part(where: str, part: Windows, train: Windows, dtype: str) -> None:
    rows, starts, targets = part.rows, part.starts, part.targets
    for name, array in (("rows", rows), ("starts", starts), ("targets", targets)):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            kind = getattr(array, "dtype", type(array).__name__)
            raise DataError(f"{where}.{name} is {kind}, expected an array of numbers")
    if not len(starts):
        raise DataError(f"{where} has no windows")
    if starts.dtype.kind not in "iu" or starts.min() < 0 or starts.max() + part.length > len(rows):
        raise DataError(
            f"{where}.starts go from {starts.min()} to {starts.max()}: a window of {part.length} rows has to lie within"
            f" {len(rows)} rows"
        )
    if len(targets) != len(starts):
        raise DataError(f"{where} has {len(starts)} windows and {len(targets)} targets")
    if (rows.shape[1:], part.length) != (train.rows.shape[1:], train.length):
        raise DataError(
            f"{where} has rows {list(rows.shape[1:])} and windows of {part.length}, train {list(train.rows.shape[1:])} "
            f"and {train.length}"
        )
    first = rows[:1] if isinstance(part, Samples) else rows  # which repeats it
    for name, array in (("rows", first), ("targets", targets)):
        if array.dtype.kind == "f" and str(array.dtype) != dtype:
            raise DataError(f"{where}.{name} are {array.dtype}: write .astype(config.train.dtype), which is {dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            at = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DataError(f"{where}.{name}[{at}] is not finite")


def _model(where: str, task: Task, config: RunConfig, dataset: Dataset) -> nn.Module:
    torch.manual_seed(0)
    model = task.model(config, dataset)
    if not isinstance(model, nn.Module):
        raise DataError(f"{where}: model returned {type(model).__name__}, expected a torch.nn.Module")
    return model.to(DTYPES[config.train.dtype]).eval()


def _stand_in(config: RunConfig, dataset: Dataset) -> nn.Module:
    """Return a network of the outputs that an estimator gives, which is not there before it is fitted."""
    layers = nn.Flatten(), nn.Linear(dataset.window * dataset.features, dataset.outputs)
    return nn.Sequential(*layers).to(DTYPES[config.train.dtype]).eval()


def _few(part: Windows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return X and targets of few windows: the first, and those with the smallest and the largest target."""
    flat = part.targets.reshape(len(part), -1)
    chosen = np.array([0, flat.min(axis=1).argmin(), flat.max(axis=1).argmax()][:FEW])
    rows = part.starts[chosen, None] + np.arange(part.length)
    return torch.from_numpy(part.rows[rows].copy()), torch.from_numpy(part.targets[chosen].copy())


def _check_loss(
    where: str, task: Task, config: RunConfig, dataset: Dataset, model: nn.Module, *, part: Windows
) -> None:
    """Check that the loss of several windows is the sum of theirs. Otherwise batches and workers would not add up."""
    x, y = _few(part)
    output = model(x)
    if not isinstance(output, torch.Tensor) or len(output) != len(x):
        shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise DataError(f"{where}: the model gives {shape} for {len(x)} windows, expected [{len(x)}, ...]")
    expected = (len(x), *y.shape[1:], dataset.outputs)
    if not config.own_task and output.shape != expected:
        raise DataError(
            f"{where}: the model gives {list(output.shape)} for {len(x)} windows, expected {list(expected)}"
        )
    given = f"of an output {list(output.shape)} and targets {list(y.shape)}"
    try:
        loss = task.loss(output, y)
    except (IndexError, RuntimeError) as error:  # torch's, of shapes, and of a class without an output
        ends = float(y.numpy().min()), float(y.numpy().max())
        error.args = (f"{error} In the loss {given} from {ends[0]:g} to {ends[1]:g}; N classes are 0 to N - 1",)
        raise
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.requires_grad:
        raise DataError(f"{where}: loss returned {loss!r:.60}, expected one number that has a gradient")
    parts = [task.loss(output[row : row + 1], y[row : row + 1]) for row in range(len(x))]
    together, alone = float(loss.detach()), sum(float(part.detach()) for part in parts)
    if not math.isfinite(together):
        raise DataError(f"{where}: the loss {given} is {together}, before any step; expected a finite number")
    if abs(alone - together) > 1e-3 * max(abs(alone), abs(together), 1e-6):
        raise DataError(
            f"{where}: the loss {given} is {together:.6g}, and those of each window add up to {alone:.6g}: it has to "
            "be a sum over the batch, such as F.cross_entropy(output, target, reduction='sum')"
        )


def _check_memory(where: str, model: nn.Module) -> None:
    """Check that each parameter is one block of memory of its own: the optimiser writes from its first byte on."""
    blocks = []
    for name, parameter in model.named_parameters():
        if parameter.stride() != torch.empty_like(parameter).stride():
            raise DataError(
                f"{where}: parameter {name} {list(parameter.shape)} is a view of other numbers with gaps or repeats; "
                "make it from a tensor of its own, such as view.contiguous()"
            )
        blocks.append((parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes, name))
    for (_, end, name), (begin, _, other) in pairwise(sorted(blocks)):
        if begin < end:
            raise DataError(
                f"{where}: parameters {name} and {other} share memory, which float64, GPUs and FSDP undo; assign one "
                "nn.Parameter to both to tie them, or .clone() one"
            )


def _check_step(where: str, task: Task, config: RunConfig, dataset: Dataset, model: nn.Module) -> None:
    """Take one step as training does, check that the optimiser's state can be kept, and warn of weights that it leaves
    without a gradient.
    """
    plain = config.train.model_copy(update={"compile": False, "recompute": False, "amp": "none"})
    worker = SoloWorker(torch.device("cpu"))
    stepper = Stepper(task, model, config.model_copy(update={"train": plain}), worker, 1)
    stepper.start(1)
    batches = evaluation.training_batches(dataset.train, worker)
    first = next(batches.epoch(1, FEW, shuffle=False, seed=0))
    stepper.take(Transforms(task, batches, 0).apply(first, 1), 0)
    stepper.optimizers.dump_plain()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    if unused:
        more = f" and {len(unused) - FEW} more" if len(unused) > FEW else ""
        log.warning(
            "%s: the first %d windows give no gradient to %s%s, so that they stay as they are; use them in forward, or "
            "freeze them with requires_grad_(False)",
            where,
            FEW,
            ", ".join(unused[:FEW]),
            more,
        )


@torch.no_grad()
def _check_saved(where: str, task: Task, config: RunConfig, dataset: Dataset, model: nn.Module) -> None:
    """Check that a model made with other random numbers, as in another process, gives equal outputs.

    Both have the same saved weights.
    """
    again = task.model(config, dataset).to(DTYPES[config.train.dtype])
    try:
        weights.load(again, load(pack(weights.dump(model))))
    except (AttributeError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: the model's state cannot be saved and loaded ({error}); expected tensors that own their memory, "
            "all of them made in __init__"
        ) from error
    x, _ = _few(dataset.test)
    before, after = model.eval()(x), again.eval()(x)
    if not torch.allclose(before, after, rtol=TOLERANCE, atol=TOLERANCE * float(before.abs().max()), equal_nan=True):
        gap = float((after - before).abs().max())
        raise DataError(
            f"{where}: loaded from its saved weights, the model's answers differ by up to {gap:.2g}; keep the numbers "
            "that it draws or changes with register_buffer, and draw none in eval()"
        )


def _check_plain(where: str, value: object) -> None:
    """Raise DataError for a value that is not plain JSON."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_plain(f"{where}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            _check_plain(where, item)
    elif not isinstance(value, str | float | int | None):
        raise DataError(f"{where} as {type(value).__name__}; write float(...), or .tolist() for an array")


@torch.no_grad()
def _check_metrics(where: str, task: Task, dataset: Dataset, model: nn.Module) -> None:
    """Call `judge` as after training, with the outputs of a few windows repeated for all."""
    outputs = {}
    for name, part in (("valid", dataset.valid), ("test", dataset.test)):
        if part is not None:
            x, y = _few(part)
            kept = task.kept(model(x), y)
            if kept.ndim != 2 or len(kept) != len(x):
                raise DataError(
                    f"{where}: kept returned {list(kept.shape)} for {len(x)} windows, expected [{len(x)}, n]"
                )
            outputs[name] = np.resize(kept.numpy(), (len(part), kept.shape[1]))
    metrics = task.judge(outputs, dataset)
    for name in (*outputs, "naive"):
        if not isinstance(metrics, dict) or not isinstance(metrics.get(name), dict):
            expected = "{'valid': {METRIC: VALUE}, 'test': {METRIC: VALUE}, 'naive': {NAME: {METRIC: VALUE}}}"
            raise DataError(f"{where}: judge returned no {name}, expected {expected}")
        _check_plain(f"{where}: judge returned {name}", metrics[name])
    gain = metrics["test"].get("improvement")
    if gain is not None and (missing := [key for key in Improvement.__annotations__ if key not in gain]):
        raise DataError(
            f"{where}: the improvement that judge returned has no {missing[0]}; see sp500.metrics.improvement"
        )
    if gain is not None and gain["over"] not in metrics["naive"]:
        raise DataError(
            f"{where}: judge returned an improvement over {gain['over']!r}, expected one of its naive answers: "
            f"{', '.join(metrics['naive']) or 'it returned none'}"
        )
