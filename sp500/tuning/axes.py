"""The values that a search tries for a setting (an axis: listed ones, or a range), and the axes together (a space).

An axis can be built from wrong values. Its `fault` says what is wrong, and the space adds the name of the setting.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sp500.errors import ConfigError
from sp500.runs.results import Overrides

if TYPE_CHECKING:
    import numpy as np

# Combinations that are listed or validated one by one, at a fraction of a millisecond each.
MOST = 10_000
HOW_TO_WRITE = "write a value, a list [16, 32], or a range {low: 1.0e-4, high: 1.0e-2, log: true}"


@dataclass(frozen=True)
class Choice:
    """One of some values. Each can be anything that JSON can hold, also a list."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of different values."""
        return len(self.values)

    @property
    def points(self) -> tuple[Any, ...]:
        """Values to try before a search starts: all."""
        return self.values

    @property
    def fault(self) -> str:
        """An error message and the way out; empty if it is valid."""
        names: dict[Any, str] = {}
        for value in self.values:
            known, name = encode(value), text(value)
            if known in names:
                both = "twice" if names[known] == name else f"and {name}, which are equal to Python"
                return f"names {names[known]} {both}; leave one out"
            names[known] = name
        return "" if names else "has no values, so the space is empty; list some, or leave the key out"

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw one value, all equally likely."""
        return self.values[int(generator.integers(len(self.values)))]

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the way through the list."""
        return self.values[int(share * len(self.values))]

    def contains(self, value: Any) -> bool:
        """Return whether it is one of the values; a list and a tuple are the same."""
        return text(value) in {text(listed) for listed in self.values}


@dataclass(frozen=True)
class Uniform:
    """A number from low to high, both included; with `log` every factor is equally likely, not every difference."""

    low: float
    high: float
    log: bool = False

    @property
    def count(self) -> None:
        """None: there are infinitely many values."""
        return None

    @property
    def points(self) -> tuple[float, ...]:
        """Values to try before a search starts: both ends, and one between them that is not a whole number."""
        return (self.low, self.low + (self.high - self.low) / math.pi, self.high)

    @property
    def fault(self) -> str:
        """An error message and the way out; empty if it is valid."""
        if self.log and self.low <= 0:
            return f"has log: true with low {self.low}; raise low above 0, or drop log"
        return _range_fault(self.low, self.high)

    def draw(self, generator: np.random.Generator) -> float:
        """Draw one number."""
        return self.at(float(generator.random()))

    def at(self, share: float) -> float:
        """Return the number at a share in [0, 1) of the way from low to high."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        number = low + (high - low) * share
        return min(max(math.exp(number) if self.log else number, self.low), self.high)

    def contains(self, value: Any) -> bool:
        """Return whether it is a number within the range."""
        return is_number(value) and self.low <= value <= self.high


@dataclass(frozen=True)
class Integers:
    """A whole number from low to high, both included; with `log` every factor is about equally likely."""

    low: int
    high: int
    log: bool = False

    @property
    def count(self) -> int:
        """Number of different values."""
        return self.high - self.low + 1

    @property
    def points(self) -> tuple[int, ...]:
        """Values to try before a search starts: both ends."""
        return (self.low, self.high)

    @property
    def fault(self) -> str:
        """An error message and the way out; empty if it is valid."""
        if self.log and self.low < 1:
            return f"has log: true with low {self.low}; raise low to 1 or more, or drop log"
        return _range_fault(self.low, self.high)

    def draw(self, generator: np.random.Generator) -> int:
        """Draw one whole number."""
        return self.at(float(generator.random())) if self.log else int(generator.integers(self.low, self.high + 1))

    def at(self, share: float) -> int:
        """Return the whole number at a share in [0, 1) of the way from low to high."""
        if not self.log:
            return self.low + int(share * self.count)
        # Half a step beyond both ends, so that the ends are as likely as their neighbours.
        ends = math.log(self.low - 0.5), math.log(self.high + 0.5)
        number = math.exp(ends[0] + (ends[1] - ends[0]) * share)
        return min(max(round(number), self.low), self.high)

    def contains(self, value: Any) -> bool:
        """Return whether it is a whole number within the range."""
        return isinstance(value, int) and is_number(value) and self.low <= value <= self.high


Axis = Choice | Uniform | Integers


@dataclass(frozen=True)
class Space:
    """The settings a search varies, each with its axis. Raises ConfigError without axes, or for a faulty one."""

    name: str
    axes: dict[str, Axis]

    def __post_init__(self) -> None:
        faults = [f"{key} {axis.fault}" for key, axis in self.axes.items() if axis.fault]
        if faults or not self.axes:
            raise ConfigError(f"search space {self.name}: {faults[0] if faults else 'it is empty; name a setting'}")

    @property
    def is_grid(self) -> bool:
        """True if every axis lists its values."""
        return all(isinstance(axis, Choice) for axis in self.axes.values())

    @property
    def size(self) -> int | None:
        """Combinations of a grid; None for a space with a range."""
        return math.prod(axis.count or 0 for axis in self.axes.values()) if self.is_grid else None

    def combine(self, values: Iterable[Iterable[Any]]) -> Iterator[Overrides]:
        """Yield every combination of these values, which are by axis; the last axis is the fastest."""
        return (dict(zip(self.axes, row, strict=True)) for row in itertools.product(*values))

    def list_grid(self) -> Iterator[Overrides]:
        """Yield every combination of a grid. Raises ConfigError for a space that is none, or too large for one."""
        where = f"search space {self.name}"
        if ranges := [key for key, axis in self.axes.items() if not isinstance(axis, Choice)]:
            raise ConfigError(f"{where}: grid search needs lists of values; {ranges[0]} is a range")
        if (self.size or 0) > MOST:
            raise ConfigError(f"{where}: a grid of {self.size:,} configs, over {MOST:,}; draw from it")
        return self.combine(axis.points for axis in self.axes.values())

    def draw(self, generator: np.random.Generator) -> Overrides:
        """Draw one value of every axis, by dotted key."""
        return {key: axis.draw(generator) for key, axis in self.axes.items()}

    def contains(self, overrides: Mapping[str, Any]) -> bool:
        """Return whether these are its settings, each with a value that its axis has.

        A trial of a space of several kinds of model leaves out what its kind lacks.
        """
        lacking = {key for key in self.axes if key.startswith("model.")} if "model.kind" in self.axes else set()
        return set(self.axes) - lacking <= set(overrides) <= set(self.axes) and all(
            self.axes[key].contains(value) for key, value in overrides.items()
        )


def choices(name: str, values: Mapping[str, Sequence[Any]]) -> Space:
    """Return the grid of some listed values by dotted key."""
    return Space(name, {key: Choice(tuple(listed)) for key, listed in values.items()})


def read(entry: Any, *, whole: bool) -> Axis:
    """Return the axis that a value in a YAML file means: one value, a list, or low and high.

    Whole ends give whole numbers if `whole` says that the setting takes such. Raises ValueError with what is wrong.
    """
    if isinstance(entry, list):
        return Choice(tuple(entry))
    if not isinstance(entry, dict):
        return Choice(() if entry is None else (entry,))
    ends = dict(entry)
    low, high, log = ends.pop("low", None), ends.pop("high", None), ends.pop("log", False)
    if ends or not (is_number(low) and is_number(high) and isinstance(log, bool)):
        raise ValueError(f"cannot be {entry}; {HOW_TO_WRITE}")
    if whole and isinstance(low, int) and isinstance(high, int):
        return Integers(low, high, log)
    return Uniform(float(low), float(high), log)


def text(value: Any) -> str:
    """Return one value as JSON, the form in which values are compared."""
    return json.dumps(value, default=str)


def encode(value: Any) -> Any:
    """Return a value in Optuna's form, which compares values as Python does: a list or a mapping as its JSON."""
    return text(value) if isinstance(value, (list, tuple, dict)) else value


def is_number(value: Any) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range_fault(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"ranges from {low} to {high}; use finite numbers"
    return "" if low < high else f"has low {low} not below high {high}; swap them, or set a single value"
