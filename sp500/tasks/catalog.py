"""Every task by name."""

from __future__ import annotations

from collections.abc import Callable

from sp500.config import RunConfig
from sp500.data import arrays
from sp500.tasks.images import Images
from sp500.tasks.language import Language
from sp500.tasks.returns import Direction, Returns
from sp500.tasks.synthetic import Synthetic
from sp500.training.task import Task

TASKS: dict[str, Callable[[RunConfig], Task]] = {
    "returns": Returns,
    "direction": Direction,
    "images": Images,
    "language": Language,
    "synthetic": Synthetic,
}


def resolve(config: RunConfig) -> RunConfig:
    """The settings with the task that an npz file's targets ask for: 0 and 1 alone mean direction."""
    if config.task == "returns" and config.data.npz_path and arrays.is_direction(arrays.read(config.data.npz_path)):
        return config.model_copy(update={"task": "direction"})
    return config


def task(config: RunConfig) -> Task:
    """The task of a resolved configuration."""
    return TASKS[config.task](config)
