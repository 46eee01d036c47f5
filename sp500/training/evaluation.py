"""Evaluation: what a task keeps of a model's outputs, window by window, and how many windows are evaluated at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sp500.data.batches import Batch, Batches, TrainingBatches
from sp500.data.samples import SampleBatches, Samples
from sp500.data.windows import Windows
from sp500.errors import DataError
from sp500.training.task import Measuring, Sums, Task
from sp500.training.worker import Worker

EVAL_BATCH, EVAL_PIXELS = 4096, 2**19


def batches_of(windows: Windows, worker: Worker) -> Batches:
    """Return this rank's batches of a split."""
    return Batches(windows, worker.device, rank=worker.rank, world=worker.world)


def training_batches(windows: Windows, worker: Worker) -> TrainingBatches:
    """Return this rank's batches of the training split, which may be samples that are read when they are needed."""
    if isinstance(windows, Samples):
        return SampleBatches(windows, worker.device, rank=worker.rank, world=worker.world)
    return batches_of(windows, worker)


def windows_at_once(batches: Batches, batch_size: int) -> int:
    """Return the windows in a batch of evaluation: fewer if each has several targets, or rows as large as pictures."""
    count = max(EVAL_BATCH // batches.targets_each, 1)
    return min(count, max(EVAL_PIXELS // batches.pixels, batch_size)) if batches.pixels else count


class Measures:
    """What a task measures, as sums over the batches of all workers; nothing for a task that measures nothing."""

    def __init__(self, task: Task, worker: Worker) -> None:
        self._task, self._worker = task if isinstance(task, Measuring) else None, worker
        self._sums: dict[str, Tensor] = {}

    def add(self, output: Tensor, batch: Batch) -> None:
        """Count this rank's part of a batch. Raises DataError for what is not a `Sums` by name."""
        if self._task is None:
            return
        measured: Mapping[str, object] = self._task.measure(output, batch.y)
        for name, sums in measured.items():
            if not isinstance(sums, Sums):
                kind = type(sums).__name__
                raise DataError(f"measure returned {name} as {kind}, expected sp500.Sums(total, count)")
            like: dict[str, Any] = {"dtype": torch.float64, "device": self._worker.device}
            pair = torch.stack([torch.as_tensor(number, **like) for number in (sums.total, sums.count)])
            pair = pair * bool(batch.count)
            self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def means(self) -> dict[str, float]:
        """Return the numbers by name. All workers call it."""
        if not self._sums:
            return {}
        totals = self._worker.total(torch.stack([self._sums[name] for name in sorted(self._sums)]))
        return {name: float(total / count) for name, (total, count) in zip(sorted(self._sums), totals, strict=True)}


@torch.no_grad()
def predict(
    task: Task, model: nn.Module, windows: Windows, worker: Worker, batch_size: int, *, measures: Measures | None = None
) -> np.ndarray:
    """Return what the task keeps of the outputs for all windows [window, number], the same on every rank.

    Each rank computes its part of every batch, and `measures` counts it.
    """
    model.eval()
    whole = torch.empty(0)
    batches = batches_of(windows, worker)
    for batch in batches.in_order(windows_at_once(batches, batch_size)):
        output = model(batch.x)
        part = task.kept(output, batch.y)
        if measures:
            measures.add(output, batch)
        if not len(whole):
            whole = part.new_zeros(len(windows), part.shape[1])
        if batch.count:
            whole[batch.windows] = part
    return worker.total(whole).cpu().numpy()
