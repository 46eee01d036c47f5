"""The data of a search's trials: a task and a dataset for each of its settings of the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, SP500Error
from sp500.training.task import Task
from sp500.tuning.limits import NO_VALIDATION

PART = 2**24
"""Outputs that are held at once."""


@dataclass(frozen=True)
class TrialData:
    """One dataset, ready. `naive_loss`: mean validation loss of a model that always answers zero."""

    task: Task
    dataset: Dataset
    naive_loss: float


Datasets = Mapping[str, TrialData | str]
"""Data by `key`; if it cannot be made, the reason."""


def key(config: RunConfig) -> str:
    """Return the hash of the settings that decide the data, the same for all trials that can share it."""
    sections = [section.model_dump(mode="json") for section in config.sections.values()]
    data = config.data.model_dump(mode="json"), *sections, config.task, config.train.dtype
    loss = config.train.model_dump(include={"loss", "quantile"}, exclude_defaults=True)
    data = (*data, loss) if loss else data  # training starts from the best constant under it
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def name(config: RunConfig) -> str:
    """Return the dataset's name for a reader."""
    if section := config.sections.get(config.task_kind.section):
        return str(getattr(section, "source", config.task))
    tickers = list(config.data.tickers)
    shown = " ".join(tickers[:3]) + (f" and {len(tickers) - 3} more" if len(tickers) > 3 else "")
    return f"{shown or config.data.source}, {config.data.window} days"


def prepare(configs: Iterable[RunConfig]) -> Datasets:
    """Prepare data by key. If it cannot be made, the reason: its trials fail with it, and the others continue.

    Raises the error when no data can be made.
    """
    datasets: dict[str, TrialData | str] = {}
    first: SP500Error | None = None
    for config in configs:
        if key(config) in datasets:
            continue
        try:
            datasets[key(config)] = _prepare(config)
        except SP500Error as error:
            datasets[key(config)], first = str(error), first or error
    if first and not any(isinstance(data, TrialData) for data in datasets.values()):
        raise first
    return datasets


def hash_all(datasets: Datasets) -> str:
    """Return the hash of all data of a search; of one dataset, its own. Data that could not be made has none."""
    hashes = [data.dataset.sha256 for data in datasets.values() if isinstance(data, TrialData)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(json.dumps(sorted(hashes)).encode()).hexdigest()


def _prepare(config: RunConfig) -> TrialData:
    from sp500.tasks import catalog  # with what reads prices, images and texts; packs only train

    task = catalog.task(config)
    dataset = catalog.prepare(task, config)
    if dataset.valid is None:
        raise ConfigError(NO_VALIDATION)
    return TrialData(task, dataset, _naive_loss(task, dataset.valid.targets, dataset.outputs))


def _naive_loss(task: Task, targets: np.ndarray, outputs: int) -> float:
    """Return the mean loss of outputs of zero, in parts that take little memory."""
    total, count = 0.0, max(PART * len(targets) // (targets.size * outputs), 1)
    for first in range(0, len(targets), count):
        part = torch.from_numpy(targets[first : first + count].copy())
        kind = part.dtype if part.is_floating_point() else torch.float32
        total += float(task.loss(torch.zeros(*part.shape, outputs, dtype=kind), part))
    return total / targets.size
