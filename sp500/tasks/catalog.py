"""Every task by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from sp500.config import RunConfig
from sp500.data.sources import arrays
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, DataError, SP500Error
from sp500.machine.memory import is_out_of_memory
from sp500.models import catalog as models
from sp500.plugins import source
from sp500.plugins.contract import REQUIRED, describe_judge
from sp500.plugins.reference import Reference
from sp500.tasks import checks
from sp500.tasks.images import Images
from sp500.tasks.language import Language
from sp500.tasks.returns import Direction, Returns
from sp500.tasks.synthetic import Synthetic
from sp500.training.task import Task

BUILT_IN = (Returns, Direction, Images, Language, Synthetic)
TASKS: dict[str, Callable[[RunConfig], Task]] = {make.__name__.lower(): make for make in BUILT_IN}


def resolve(config: RunConfig) -> RunConfig:
    """The settings with the task that an npz file's targets ask for, and a model's path from the root.

    Targets of 0 and 1 alone mean direction.

    The user's task and model are imported here, before any data is loaded. Raises ConfigError where that fails.
    """
    if config.own_task:
        _load_task(config.own_task)
    if config.model.own:
        models.load(config.model.own)
    if config.model.path and Path(config.model.path).expanduser().exists():  # workers have another working directory
        path = str(Path(config.model.path).expanduser().resolve())
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": path})})
    if config.task == "returns" and config.data.npz_path and arrays.is_direction(arrays.read(config.data.npz_path)):
        return config.model_copy(update={"task": "direction"})
    return config


def task(config: RunConfig) -> Task:
    """The task of a resolved configuration. Raises ConfigError for a user's class that is not a task."""
    if not config.own_task:
        return TASKS[config.task](config)
    make = _load_task(config.own_task)
    takes = [parameter.kind for parameter in inspect.signature(make).parameters.values()]
    return make(config) if inspect.Parameter.POSITIONAL_OR_KEYWORD in takes else make()


def prepare(task: Task, config: RunConfig, dataset: Dataset | None = None) -> Dataset:
    """The task's dataset, unless it is at hand; where task or model are the user's, it is checked, and both are tried.

    Raises DataError, also for any error of the user's code, with its line; ConfigError for a loss that is not judged.
    """
    if not (config.own_task or config.model.own):
        return dataset or task.prepare(config)
    _check_judge(task, config)
    try:
        return checks.check(task, config, dataset or task.prepare(config))
    except Exception as error:
        if isinstance(error, SP500Error) or is_out_of_memory(error):
            raise
        raise DataError(source.describe(error, config.own_task, config.model.own)) from error


def forecasts_direction(config: RunConfig) -> bool:
    """Whether a task of prices forecasts the sign of returns, not the returns. Raises ConfigError for other tasks."""
    instance = task(config)
    _check_judge(instance, config)
    if not isinstance(instance, Returns | Direction):
        raise ConfigError(
            f"task {config.task}: folds are cut by date, which it has none of; inherit from sp500.tasks.returns.Returns"
            " or Direction"
        )
    return isinstance(instance, Direction)


def _check_judge(task: Task, config: RunConfig) -> None:
    """Raises ConfigError for a loss of the user's, wherever it comes from, next to the judge of a built-in task."""
    loss, judge = (_find_class(getattr(task, name)) for name in ("loss", "judge"))
    if config.own_task and judge != loss and judge in {(make.__module__, make.__qualname__) for make in BUILT_IN}:
        raise ConfigError(describe_judge(f"{config.own_task.path.name}: class {config.own_task.name}", judge[1]))


def _find_class(method: Callable[..., object]) -> tuple[str, str]:
    """Module and class that a method was written in."""
    function = getattr(method, "__func__", method)
    return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", "")).rpartition(".")[0]


def _load_task(own: Reference) -> Callable[..., Task]:
    """The user's task class. Raises ConfigError for another object, and for an abstract class."""
    maker: Callable[..., Task] = source.load(own)
    if not (isinstance(maker, type) and Task in maker.__mro__):
        raise ConfigError(f"{own.path.name}: {own.name} is not a class that inherits from sp500.Task")
    if missing := getattr(maker, "__abstractmethods__", None):
        name = min(missing)
        raise ConfigError(f"{own.path.name}: class {own.name} has no method {name}; add '{REQUIRED.get(name, name)}'")
    return maker
