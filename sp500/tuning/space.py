"""Which configs a search tries: a grid of dotted settings over one base configuration."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sp500.config import RunConfig
from sp500.errors import ConfigError

Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """One config of a search. `id` is its fingerprint; `overrides` what it changes in the base, by dotted key."""

    id: str
    overrides: dict[str, Any]
    config: RunConfig


def grid18() -> Axes:
    """18 small MLPs: width x learning rate x dropout."""
    return {"model.hidden": (32, 64, 128), "train.lr": (1e-3, 3e-3, 1e-2), "model.dropout": (0.0, 0.2)}


SPACES: dict[str, Callable[[], Axes]] = {"grid18": grid18}


def grid(base: RunConfig, axes: Axes) -> list[Trial]:
    """Every combination of the axes' values, the last axis fastest.

    Raises ConfigError for a space without configs or with a setting that is none.
    """
    empty = [key for key, values in axes.items() if not len(values)]
    if empty or not axes:
        raise ConfigError(f"the search space is empty: {', '.join(empty) or 'it has no axes'}")
    trials = [trial(base, dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    if len({one.id for one in trials}) < len(trials):
        raise ConfigError(f"the search space names some configs twice: {dict(axes)}")
    return trials


def trial(base: RunConfig, overrides: dict[str, Any]) -> Trial:
    """The base with some settings changed. Raises ConfigError that names them."""
    data = base.run_config().model_dump()
    for key, value in overrides.items():
        part, _, name = key.rpartition(".")
        section = data.get(part) if part else data
        if not isinstance(section, dict) or name not in section:
            raise ConfigError(f"search space: {key} is no setting")
        section[name] = value
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"search space: {overrides} is no valid config: {error.errors()[0]['msg']}") from None
    return Trial(config.fingerprint, overrides, config)


def key(trials: Sequence[Trial], data: str = "") -> str:
    """Hash of a search: the same configs on the same data (by its hash) have the same key, wherever they ran."""
    return hashlib.sha256(json.dumps([data, *(one.id for one in trials)]).encode()).hexdigest()[:16]
