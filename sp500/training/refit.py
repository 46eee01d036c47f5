"""Refit: once validation has chosen the epoch, the model is trained again on training and validation dates together.

The newest dates before the test are the most like it, and without this they only choose the epoch: 17.5% of the
history by default. The gap before the test stays. The price is a second training run, whose number of epochs was
chosen on fewer windows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.models import catalog
from sp500.runs.results import Refit
from sp500.training.loop import FitResult
from sp500.training.task import Task

Fit = Callable[[RunConfig, Dataset, Path], FitResult]
"""Trains a config on a dataset, with the checkpoints in a folder."""


def fit_with(
    fit_one: Fit, task: Task, config: RunConfig, dataset: Dataset, *, folder: Path, whole: Dataset | None = None
) -> tuple[FitResult, Refit | None, Dataset]:
    """Train `config`. With train.refit, train again on all dates before the test.

    Returns the result, facts of the second training, and the dataset that the judged model was trained on. With refit,
    the outputs on the test are the second model's, and those on the validation dates the first one's, in units of
    `dataset`. `whole` has all dates before the test as training windows (default: prepared here). Where the untrained
    model is the best, there is no second training.
    """
    first = folder / "checkpoints"
    if not config.train.refit:
        return fit_one(config, dataset, first), None, dataset
    # `checkpoints` are always those of the model that is judged, so that the run's model is loaded only from there.
    choice = folder / "checkpoints-choice"
    result = fit_one(config, dataset, choice)
    if not result.best_epoch:
        if choice.exists():
            shutil.copytree(choice, first, symlinks=True, dirs_exist_ok=True)
        return result, {"epochs": 0, "windows": 0, "splits": {}}, dataset
    second = settings(config, result.best_epoch, estimated=catalog.is_estimator(config.model, dataset))
    whole = whole or task.prepare(second)
    again = fit_one(second, whole, first)
    test = in_units_of(dataset, again.outputs["test"], whole)
    merged = replace(
        result,
        outputs=result.outputs | {"test": test},
        fit_seconds=result.fit_seconds + again.fit_seconds,
        peak_worker_bytes=max(result.peak_worker_bytes, again.peak_worker_bytes),
    )
    facts: Refit = {
        "epochs": len(again.epochs),
        "windows": len(whole.train),
        "splits": whole.card.get("splits", {}),
    }
    return merged, facts, whole


def in_units_of(dataset: Dataset, outputs: np.ndarray, whole: Dataset) -> np.ndarray:
    """Return outputs of a model of `whole` in the scale of the targets of `dataset`."""
    return np.asarray(outputs * np.asarray(whole.target_scale / dataset.target_scale, outputs.dtype))


def settings(config: RunConfig, epochs: int, *, estimated: bool = False) -> RunConfig:
    """Return the config of the second training: no validation, and the epochs, or stages, that the first one chose."""
    changes = {"refit": False, "early_stop_patience": 0} | ({} if estimated else {"epochs": epochs})
    train, model = config.train.model_copy(update=changes), config.model.after(epochs)
    data = config.data.model_copy(update={"valid_from_train": 0.0})
    return config.model_copy(update={"train": train, "data": data, "model": model})
