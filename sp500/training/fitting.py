"""Fitting of a model of any kind: networks by the training loop, estimators by themselves."""

from __future__ import annotations

from sp500.config import RunConfig, estimators
from sp500.data.batches import TrainingBatches
from sp500.data.windows import Dataset
from sp500.errors import ConfigError
from sp500.models import catalog
from sp500.training import loop
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult
from sp500.training.task import Task
from sp500.training.worker import Worker


def fit_model(
    task: Task,
    dataset: Dataset,
    config: RunConfig,
    worker: Worker,
    checkpoints: Checkpoints | None = None,
    *,
    train: TrainingBatches | None = None,
    splits: tuple[str, ...] = ("valid", "test"),
) -> FitResult:
    """Fit the model of `config` in this process: see `loop.fit` and `estimator.fit`, which raise the same errors.

    `train`: batches from shards. Raises ConfigError for an estimator, which takes none.
    """
    if not catalog.is_estimator(config.model, dataset):
        return loop.fit(task, dataset, config, worker, checkpoints, train=train, splits=splits)
    if train is not None:
        raise ConfigError(f"shards: {estimators.explain_alone(config.model.kind)}; use --arms in_memory")
    from sp500.training import estimator

    return estimator.fit(task, dataset, config, checkpoints, splits=splits)
