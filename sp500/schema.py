"""Plain data and the models that it has to fit: merged, overridden by dotted key, checked, explained where wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from sp500.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
SECRET = {"env", "secrets"}
"""Fields whose values are in no message."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def validate(model: type[M], data: Mapping[str, object], where: str) -> M:
    """The model of `data`. Raises ConfigError with each fault's key path and, for an unknown key, the nearest name."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [f"{where}: {explain(model, fault)}".removeprefix(": ") for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def explain(model: type[BaseModel], fault: Any) -> str:
    """One of pydantic's faults as text: key path, expected value, actual value."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    if fault["type"] != "extra_forbidden":
        message = str(fault["msg"]).removeprefix("Value error, ").removeprefix(f"{key}: ")
        where = f"{key}: " if key and not message.startswith(f"{key}.") else ""  # it names its fields itself
        value = "(hidden)" if SECRET & set(path) else f"{fault['input']!r:.60}"
        return where + message + ("" if fault["type"] == "value_error" else f", got {value}")
    section: Any = model
    for part in path[:-1]:  # a name in a mapping, or a place in a list, leads to what that holds
        fields = getattr(section, "model_fields", None)
        section = fields[part].annotation if fields else get_args(section)[-1 if get_origin(section) is dict else 0]
    known = list(section.model_fields)
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.4)
    hint = f"did you mean {'.'.join([*path[:-1], near[0]])}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {key}; {hint}"


def plain(value: Any) -> Any:
    """A value from YAML as JSON has it: 1e-4, which YAML 1.1 reads as text, a number, a date a text."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    return value.isoformat() if isinstance(value, date) else value


def override(settings: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    """Plain settings with some changed by dotted key."""
    changed = dict(settings)
    for key, value in overrides.items():
        first, _, rest = key.partition(".")
        section = changed.get(first)
        changed[first] = override(section if isinstance(section, Mapping) else {}, {rest: value}) if rest else value
    return changed


def merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """`changes` over `base`, section by section."""
    both = dict(base)
    for key, value in changes.items():
        inner = both.get(key)
        if isinstance(inner, dict) and value is None:  # a section without a key under it
            continue
        both[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both
