"""The configs that a search tries: a space of dotted settings over one base configuration.

A space of listed values is a grid and can be tried in full; one with a range is drawn from. What can be refused is
refused here, before a cluster is started. The price: every combination of a grid is validated, so a grid has a limit.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

from pydantic import ValidationError

from sp500.config import ModelConfig, RunConfig, estimators
from sp500.errors import ConfigError
from sp500.runs.results import Overrides
from sp500.schema import override
from sp500.seeding import numpy_generator
from sp500.tuning.axes import MOST, Axis, Choice, Integers, Space, Uniform, choices, text
from sp500.tuning.presets import PRESETS, load, unknown
from sp500.tuning.suggest import Candidates, Trial

__all__ = ["PRESETS", "Axis", "Choice", "ConfigTrial", "Integers", "Space", "Uniform", "candidates", "check"]
__all__ += ["choices", "distinct", "grid", "key", "load", "trial", "valid"]

DECIDE_NOTHING = ("num_workers", "io.", "eval.", "train.device", "train.threads", "train.per_worker_batch")


@dataclass(frozen=True)
class ConfigTrial(Trial):
    """A trial whose overrides change settings of a base, by dotted key; `id` is the fingerprint of the config."""

    config: RunConfig


def candidates(base: RunConfig, space: Space) -> Candidates[ConfigTrial]:
    """Return the configs of a space over one base."""

    @cache
    def list_grid() -> list[ConfigTrial]:
        _check_axes(space)
        return grid(base, space)

    def count() -> int | None:
        if _is_small_grid(space):
            return len(list_grid())
        check(base, space)
        return distinct(base, space)

    return Candidates(space, list_grid, count, partial(valid, base))


def grid(base: RunConfig, axes: Space | Mapping[str, Sequence[Any]]) -> list[ConfigTrial]:
    """Return every combination of a grid, the last axis fastest.

    Raises ConfigError for a space that is not a grid or too large for one, and for a combination that is not a valid
    config or has the numbers of another.
    """
    space = axes if isinstance(axes, Space) else choices("grid", axes)
    where = f"search space {space.name}"
    return _keep_distinct(space, [trial(base, overrides, where) for overrides in space.list_grid()])


def check(base: RunConfig, space: Space) -> None:
    """Raise an error for a space that cannot be searched over this base, before anything is started.

    Every combination of a grid has to be valid. Of a space with ranges (or a huge grid), so has at least one with each
    choice and with each end of a range; combinations that are not are never drawn. Raises ConfigError with the reason.
    """
    _check_axes(space)
    if _is_small_grid(space):
        grid(base, space)
    else:
        _check_corners(base, space)


def _is_small_grid(space: Space) -> bool:
    """Return whether all combinations can be validated one by one."""
    return space.is_grid and (space.size or 0) <= MOST


def _check_axes(space: Space) -> None:
    if own := [value for key in ("task", "model.kind") for value in _choice_values(space, key) if ":" in str(value)]:
        raise ConfigError(
            f"search space {space.name}: lists {own[0]}; set a task or model of your own by --task or --model.kind, "
            "and search its settings and options"
        )
    if idle := [key for key in space.axes if key.startswith(DECIDE_NOTHING)]:
        raise ConfigError(
            f"search space {space.name}: {idle[0]} changes no result of a trial; set it for the whole search"
        )


def _check_corners(base: RunConfig, space: Space) -> None:
    """Check that each choice and each end of a range is valid in some combination."""
    where, trials = f"search space {space.name}", list[ConfigTrial]()
    faults: dict[tuple[str, str], str] = {}
    for overrides in _corners(space):
        try:
            trials.append(trial(base, overrides, where))
        except ConfigError as error:
            for key, value in overrides.items():
                faults.setdefault((key, text(value)), str(error).removeprefix(f"{where}: "))
    if not trials:
        raise ConfigError(f"{where}: no combination is valid; {next(iter(faults.values()))}")
    _keep_distinct(space, trials)
    fine = {(key, text(value)) for valid_trial in trials for key, value in valid_trial.overrides.items()}
    for (key, value), reason in faults.items():
        if (key, value) not in fine:
            raise ConfigError(f"{where}: no valid configuration has {key} = {value}; {reason}")


def _choice_values(space: Space, key: str) -> tuple[Any, ...]:
    axis = space.axes.get(key)
    return axis.values if isinstance(axis, Choice) else ()


def distinct(base: RunConfig, space: Space) -> int | None:
    """Return the number of valid configs. None: infinitely many, or too many to count."""
    values: list[Sequence[Any]] = []
    for axis in space.axes.values():
        if isinstance(axis, Uniform):
            return None
        values.append(range(axis.low, axis.high + 1) if isinstance(axis, Integers) else axis.points)
    if math.prod(map(len, values)) > MOST:
        return None
    drawn = (valid(base, overrides) for overrides in space.combine(values))
    return len({trial.id for trial in drawn if trial})


def trial(base: RunConfig, overrides: Overrides, where: str = "search space") -> ConfigTrial:
    """Return the base with some settings changed, without those that only other kinds of model have or use.

    Raises ConfigError that begins with `where` and names them.
    """
    data = base.run_config().model_dump()
    for key in overrides:
        if wrong := unknown(key):
            raise ConfigError(f"{where}: {wrong}")
    lacking = estimators.list_unused(str(overrides.get("model.kind", base.model.kind)))
    try:
        plain = override(data, {key: value for key, value in overrides.items() if key not in lacking})
        plain["model"] = ModelConfig.leave_unused(cast("Mapping[str, Any]", plain["model"]))
        config = RunConfig.model_validate(plain)
    except ValidationError as error:
        fault = error.errors()[0]
        reason = fault["msg"].removeprefix("Value error, ")
        part = "" if fault["type"] == "value_error" else ".".join(map(str, fault["loc"])) + ": "
        raise ConfigError(f"{where}: {overrides} is not a valid config: {part}{reason}") from None
    except ConfigError as error:  # a kind of model that there is not
        raise ConfigError(f"{where}: {overrides} is not a valid config: {error}") from None
    lacking |= {f"model.{name}" for name in ModelConfig.all_fields().keys() - type(config.model).model_fields.keys()}
    own = {key: value for key, value in overrides.items() if ".".join(key.split(".")[:2]) not in lacking}
    return ConfigTrial(config.fingerprint, own, config)


def valid(base: RunConfig, overrides: Overrides) -> ConfigTrial | None:
    """Return the trial, or None if the settings are no valid config."""
    try:
        return trial(base, overrides)
    except ConfigError:
        return None


def key(ids: Iterable[str], data: str = "") -> str:
    """Return the hash of a search: the same configs on the same data have the same key, in whatever order they ran."""
    return hashlib.sha256(json.dumps([data, *sorted(ids)]).encode()).hexdigest()[:16]


def _corners(space: Space) -> Iterator[Overrides]:
    """Yield all combinations of choices and ends of ranges; of a huge space a fixed sample with each value often."""
    points = [axis.points for axis in space.axes.values()]
    if math.prod(map(len, points)) <= MOST:
        rows: Iterable[tuple[Any, ...]] = itertools.product(*points)
    else:
        longest, generator = max(map(len, points)), numpy_generator(0, "corners")
        # Latin squares: in each round every axis goes through its values once or more.
        orders = ([generator.permutation(longest) for _ in points] for _ in range(max(MOST // longest, 1)))
        rows = {
            text(row): row
            for order in orders
            for row in (
                tuple(values[at[step] % len(values)] for values, at in zip(points, order, strict=True))
                for step in range(longest)
            )
        }.values()
    return (dict(zip(space.axes, row, strict=True)) for row in rows)


def _keep_distinct(space: Space, trials: Iterable[ConfigTrial]) -> list[ConfigTrial]:
    """Return the trials, each once. Two are equal if they differ only in settings that their kind of model lacks.

    Raises ConfigError for other settings that have the same numbers, and for a setting that no trial has.
    """
    trials = list(trials)
    for key in space.axes:
        if all(key not in trial.overrides for trial in trials):
            used = ", ".join(sorted({trial.config.model.kind for trial in trials}))
            raise ConfigError(f"search space {space.name}: {key} is not used by model.kind {used}; leave it out")
    by_id: dict[str, ConfigTrial] = {}
    for twin in trials:
        earlier = by_id.setdefault(twin.id, twin)
        if twin.overrides != earlier.overrides:
            both = f"{earlier.overrides} and {twin.overrides}"
            raise ConfigError(f"search space {space.name}: names one config twice: {both} have the same numbers")
    return list(by_id.values())
