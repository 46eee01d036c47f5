"""Built-in tasks and models by name, without what computes them.

Each is listed in the room that owns it: `BUILT_IN` of sp500.tasks.settings and of sp500.models.settings. Those modules
import no torch, so that settings are read and `--help` is printed at once. They import the bases of this package, so
they are imported here when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sp500.config.model import ModelConfig
    from sp500.config.task import TaskKind


@cache
def tasks() -> Mapping[str, TaskKind]:
    """Return the built-in tasks by name, the default first."""
    built_in: Mapping[str, TaskKind] = import_module("sp500.tasks.settings").BUILT_IN
    return built_in


@cache
def models() -> Mapping[str, type[ModelConfig]]:
    """Return the settings of the built-in models by kind."""
    built_in: Mapping[str, type[ModelConfig]] = import_module("sp500.models.settings").BUILT_IN
    return built_in


def default_task() -> str:
    """Return the name of the task if none is given."""
    return next(iter(tasks()))


def default_model() -> str:
    """Return the kind of model if none is given."""
    default: str = import_module("sp500.models.settings").DEFAULT
    return default
