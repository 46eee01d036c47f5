"""Every task by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from pkgutil import resolve_name

from sp500.config import OwnModel, RunConfig
from sp500.data.sources import arrays
from sp500.data.windows import Dataset
from sp500.errors import ConfigError
from sp500.plugins import contract, source
from sp500.tasks import checks
from sp500.tasks.prices import PriceTask
from sp500.training.task import Task


def resolve(config: RunConfig) -> RunConfig:
    """Return the settings with the task that an npz file's targets imply, and a model's path from the root.

    Targets of only 0 and 1 mean direction.

    The user's task and model are imported here, before any data is loaded. Raises ConfigError if that fails.
    """
    if config.own_task:
        contract.load_task(config.own_task)
    if isinstance(config.model, OwnModel):
        contract.load_model(config.model.own, config.model.options)
    path = Path(str(config.model.used.get("path") or "")).expanduser()
    if path.name and path.exists():  # workers have another working directory
        network = config.model.model_copy(update={"path": str(path.resolve())})
        config = config.model_copy(update={"model": network})
    binary, npz = config.task_kind.binary, config.data.npz_path
    if binary and npz and arrays.is_direction(arrays.read(npz)):
        if config.train.loss != "mse":
            raise ConfigError(
                f"train.loss {config.train.loss}: the targets of {npz} are classes, 0 and 1; leave it out"
            )
        return config.model_copy(update={"task": binary})
    return config


def task(config: RunConfig) -> Task:
    """Return the task of a resolved configuration. Raises ConfigError for a user's class that is not a task."""
    if not config.own_task:
        built_in: Task = resolve_name(config.task_kind.task)(config)
        return built_in
    make = contract.load_task(config.own_task)
    takes = [parameter.kind for parameter in inspect.signature(make).parameters.values()]
    own: Task = make(config) if inspect.Parameter.POSITIONAL_OR_KEYWORD in takes else make()
    return own


def prepare(task: Task, config: RunConfig, dataset: Dataset | None = None) -> Dataset:
    """Return the dataset, made unless it is passed. If task or model are the user's, it is checked and both are tried.

    Raises DataError, also for any error of the user's code, with its line; ConfigError for a loss that is not judged.
    """
    if not (config.own_task or config.model.own):
        return dataset or task.prepare(config)
    config.check_judge(task)
    with source.blame(config.own_task, config.model.own):
        return checks.check(task, config, dataset or task.prepare(config))


def price_task(config: RunConfig) -> PriceTask:
    """Return the task of a resolved configuration, one of prices. Raises ConfigError for other tasks."""
    instance = task(config)
    config.check_judge(instance)
    if not isinstance(instance, PriceTask):
        raise ConfigError(
            f"task {config.task}: folds are cut by date, which it has none of; inherit from sp500.PriceTask"
        )
    return instance
