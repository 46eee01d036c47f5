"""Evaluation: what a task keeps of a model's outputs, window by window, and how many windows are evaluated at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sp500.data.batches import Batches
from sp500.data.windows import Windows
from sp500.training.task import Task
from sp500.training.worker import Worker

EVAL_BATCH, EVAL_PIXELS = 4096, 2**19


def batches_of(windows: Windows, worker: Worker) -> Batches:
    """Return this rank's batches of a split."""
    return Batches(windows, worker.device, rank=worker.rank, world=worker.world)


def windows_at_once(batches: Batches, batch_size: int) -> int:
    """Return the windows in a batch of evaluation: fewer if each has several targets, or rows as large as pictures."""
    count = max(EVAL_BATCH // batches.targets_each, 1)
    return min(count, max(EVAL_PIXELS // batches.pixels, batch_size)) if batches.pixels else count


@torch.no_grad()
def predict(task: Task, model: nn.Module, windows: Windows, worker: Worker, batch_size: int) -> np.ndarray:
    """Return what the task keeps of the outputs for all windows [window, number], the same on every rank.

    Each rank computes its part of every batch.
    """
    model.eval()
    whole = torch.empty(0)
    batches = batches_of(windows, worker)
    for batch in batches.in_order(windows_at_once(batches, batch_size)):
        part = task.kept(model(batch.x), batch.y)
        if not len(whole):
            whole = part.new_zeros(len(windows), part.shape[1])
        if batch.count:
            whole[batch.windows] = part
    return worker.total(whole).cpu().numpy()
