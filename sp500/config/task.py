"""Descriptions of tasks: their settings, defaults and names for a reader. None imports the task itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from sp500 import formatting
from sp500.config import kinds
from sp500.config.frozen import Frozen
from sp500.config.model import Forecast, Form

if TYPE_CHECKING:
    from sp500.config import RunConfig


class TaskKind:
    """A kind of task. The values here are those of a task of the user's own."""

    task: ClassVar[str] = ""
    """Module and name of its class."""
    title: ClassVar[str] = ""
    """The forecast quantity, for a reader: `Returns`."""
    previous: ClassVar[str] = "previous return"
    """The name, for a reader, of the forecast that repeats the last target."""
    windows: ClassVar[Form | None] = None
    """The kind of its windows; None: not known."""
    section: ClassVar[str] = ""
    """Key of its own section of the settings."""
    settings: ClassVar[type[Frozen] | None] = None
    """The class of that section."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Keys of the section `data` that it does not use, and that a user could mistake for its own."""
    defaults: ClassVar[Mapping[str, Mapping[str, str | float]]] = {}
    """Defaults that differ from the usual ones. Scripts and functions apply them under the settings that are given."""
    from_prices: ClassVar[bool] = False
    """Whether its windows are cut from prices, or from an npz file of windows."""
    scales_targets: ClassVar[bool] = False
    """Whether its loss is on targets that are scaled as data.norm says."""
    has_losses: ClassVar[bool | None] = None
    """Whether it is trained by `train.loss`; None: its class decides."""
    binary: ClassVar[str] = ""
    """Name of the task that an npz file with targets of only 0 and 1 asks for."""
    persistent: ClassVar[bool] = False
    """Whether its target is persistent, so that strong correlations with it are usual."""
    forecasts: ClassVar[Forecast | None] = None
    """Whether its targets are numbers or classes; None: the type of the targets decides."""
    real: ClassVar[bool] = True
    """Whether its data come from the world, so that a source is worth naming."""
    packs: ClassVar[bool] = False
    """Whether its models are nothing but the network, so that several can train as one."""

    def identity(self, config: RunConfig) -> dict[str, object]:
        """Return the settings that decide its data, for the fingerprint."""
        changed = {key: of.model_dump(mode="json", exclude_defaults=True) for key, of in config.sections.items()}
        return config.data.identity | {key: values for key, values in changed.items() if values}

    def check(self, config: RunConfig) -> None:
        """Check what lies between its settings and those of the model. Raises ValueError."""

    def name_naive(self, name: str) -> str:
        """Return the full name of a naive forecast."""
        return self.previous if name == "previous" else formatting.NAIVE.get(name, name)

    def list_extras(self, config: RunConfig) -> list[tuple[str, tuple[str, ...]]]:
        """Return the extras that these settings need, each with its packages."""
        return []


OWN = TaskKind()
"""A task of the user's."""


def find(name: str) -> TaskKind:
    """Return the kind of a task by its name, or that of a user's own."""
    return kinds.tasks().get(name, OWN)


def of_record(config: Mapping[str, object]) -> TaskKind:
    """Return the kind of a run's task from the plain settings of its record. Old ones name no task."""
    return find(str(config.get("task") or kinds.default_task()))
