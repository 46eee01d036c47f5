"""Spaces by name, and spaces from a YAML file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from sp500.config import RunConfig
from sp500.config.frozen import Frozen
from sp500.errors import ConfigError
from sp500.schema import read_yaml
from sp500.tuning.axes import Axis, Choice, Integers, Space, Uniform, choices, read

OPTIONS = "model.options."


def grid18() -> Space:
    """Return 18 small MLPs: width x learning rate x dropout."""
    axes = {"model.hidden": (32, 64, 128), "train.lr": (1e-3, 3e-3, 1e-2), "model.dropout": (0.0, 0.2)}
    return choices("grid18", axes)


def grid108() -> Space:
    """Return the 18 MLPs, each with six seeds: they show which differences are more than luck."""
    return Space("grid108", {**grid18().axes, "train.seed": Choice(tuple(range(6)))})


def lstm12() -> Space:
    """Return 12 LSTMs: width x learning rate x dropout."""
    axes = {"model.hidden": (16, 32, 64), "train.lr": (1e-3, 3e-3), "model.dropout": (0.0, 0.2)}
    return choices("lstm12", {"model.kind": ("lstm",), **axes})


def wide() -> Space:
    """Return ranges over three kinds of network. Widths are multiples of a transformer's four heads."""
    return Space(
        "wide",
        {
            "model.kind": Choice(("mlp", "lstm", "transformer")),
            "model.hidden": Choice((16, 32, 64, 128)),
            "model.layers": Integers(1, 3),
            "model.dropout": Uniform(0.0, 0.5),
            "train.lr": Uniform(1e-4, 3e-2, log=True),
            "train.weight_decay": Uniform(1e-6, 1e-1, log=True),
        },
    )


PRESETS: dict[str, Callable[[], Space]] = {"grid18": grid18, "grid108": grid108, "lstm12": lstm12, "wide": wide}


def load(name: str) -> Space:
    """Load the preset of that name, or the space in that YAML file: dotted settings with a value, a list or a range.

    Raises ConfigError that names file, key and way out.
    """
    return PRESETS[name]() if name in PRESETS else read_space(name, _axis)


def read_space(name: str, build: Callable[[str, str, Any], Axis]) -> Space:
    """Read the space in a YAML file; `build(name, key, entry)` returns the axis of a line.

    Raises ConfigError that names file, key and way out.
    """
    import yaml

    try:
        source = Path(name).expanduser().read_text()
        settings = read_yaml(source)
    except FileNotFoundError:
        raise ConfigError(f"search space {name}: no such file, nor a preset ({', '.join(PRESETS)})") from None
    except OSError as error:
        raise ConfigError(f"search space {name}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"search space {name}: is not valid YAML ({error})") from error
    if not isinstance(settings, dict):
        fault = "it is empty" if settings is None else f"it is {settings!r:.60}"
        raise ConfigError(f"search space {name}: {fault}; write lines such as 'model.hidden: [16, 32]'")
    node = yaml.compose(source, Loader=yaml.SafeLoader)
    keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if duplicates := {key for key in keys if keys.count(key) > 1}:
        raise ConfigError(f"search space {name}: duplicate key {min(duplicates)}")
    return Space(name, {str(key): build(name, str(key), entry) for key, entry in settings.items()})


def _axis(name: str, key: str, entry: Any) -> Axis:
    section, _, field = key.rpartition(".")
    if wrong := unknown(key):
        raise ConfigError(f"search space {name}: {wrong}")
    fields = _list_fields(section)
    kind = fields[field].annotation if field in fields else None  # an option of a user's model
    try:
        return read(entry, whole=kind is not float)
    except ValueError as error:
        raise ConfigError(f"search space {name}: {key} {error}") from None


def _list_fields(section: str = "") -> Mapping[str, FieldInfo]:
    """Return the settings of a section, or those of no section, of all tasks and kinds of model."""
    fields = RunConfig.all_fields()
    of = fields[section].annotation if section in fields else None if section else RunConfig
    return of.all_fields() if isinstance(of, type) and issubclass(of, Frozen) else {}


@cache  # every trial of a search asks, for the same few keys
def unknown(key: str) -> str:
    """Return why a dotted key is not a setting, with the nearest one; empty if it is one."""
    names = [f"{name}.{field}" if field else name for name in _list_fields() for field in _list_fields(name) or ("",)]
    if key in names or (key.startswith(OPTIONS) and key.removeprefix(OPTIONS).isidentifier()):
        return ""
    if section := _list_fields(key) if key else {}:
        return f"{key} is a section, no setting; write {key}.{next(iter(section))}: ..."
    if key.startswith("options."):
        return f"unknown setting {key}; an option of a model is model.{key}"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    return f"unknown setting {key}; " + (f"did you mean {near[0]}?" if near else "write a key such as model.hidden")
