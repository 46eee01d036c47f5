"""Plain data and the models that it has to fit: merged, overridden by dotted key, checked, explained if wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from sp500.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
UNKNOWN = "unknown_key"
"""Type of pydantic's error for a key that no setting has, raised by a validator."""
SECRET = {"env", "secrets"}
"""Fields whose values are in no message."""
WHOLE = "[-+]?(0|[1-9][0-9]*)"
SCALARS = {
    "null": re.compile("^(null|Null|NULL|~|)$"),
    "bool": re.compile("^(true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(f"^{WHOLE}$"),
    "float": re.compile(
        rf"^({WHOLE}(\.[0-9]*)?|[-+]?\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
}
"""Types that are not text."""


@dataclass(frozen=True)
class Metavar:
    """Placeholder for a value in the help of a command; in the `Annotated` of a field's type."""

    text: str


def validate(model: type[M], data: Mapping[str, object], where: str) -> M:
    """Return the model of `data`.

    Raises ConfigError with each error's key path and, for an unknown key, the nearest name.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [": ".join(filter(None, [where, ".".join(key), text])) for key, text in explain(model, error)]
        raise ConfigError("\n".join(lines)) from None


def explain(model: type[BaseModel], error: ValidationError) -> list[tuple[tuple[str, ...], str]]:
    """Return key path and text of each error: expected value, actual value. A text that names its keys has no path."""
    whole: list[str] = []
    expected: dict[tuple[str, ...], list[str]] = {}
    actual: dict[tuple[str, ...], str] = {}
    for fault in error.errors():
        path, holder = _follow(model, fault["loc"])
        if fault["type"] in (UNKNOWN, "extra_forbidden"):
            known = fault["type"] == UNKNOWN
            whole.append(str(fault["msg"]) if known else describe_unknown(path, holder.model_fields))
            continue
        key = ".".join(path)
        text = str(fault["msg"]).removeprefix("Value error, ").removeprefix(f"{key}: ")
        got = f", got {'(hidden)' if SECRET & set(path) else repr(fault['input'])[:60]}"
        got = "" if fault["type"] == "value_error" else got
        if not key or text.startswith(f"{key}."):
            whole.append(text + got)
        else:
            expected.setdefault(path, []).append(text)
            actual[path] = got
    # Of a list with a wrong item, pydantic says as well that it has too few.
    lists = {path[:-1] for path in expected}
    # Several faults of one key are one for each type that it may have.
    own = [(path, "; or: ".join(texts) + actual[path]) for path, texts in expected.items() if path not in lists]
    return [((), text) for text in whole] + own


def _follow(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[tuple[str, ...], type[BaseModel]]:
    """Return an error's key path, without the type names that pydantic appends, and the model that has the key."""
    path: list[str] = []
    holder, kind = model, cast("Any", model)
    for part in loc:
        if part == "[key]":  # of a mapping: the key itself
            break
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            holder, kind = kind, _type_of(kind, str(part))
        elif get_origin(kind) is dict:
            kind = get_args(kind)[-1]
        elif isinstance(part, int):
            kind = next(iter(get_args(kind)), None)
        else:
            break
        path.append(str(part))
    return tuple(path), holder


def _type_of(model: type[BaseModel], key: str) -> Any:
    """Return the type of a key; a model whose keys depend on others knows all of them."""
    fields = model.all_fields() if hasattr(model, "all_fields") else model.model_fields
    return fields[key].annotation if key in fields else None


def describe_unknown(path: Sequence[str], known: Iterable[str]) -> str:
    """Return the message for a key that is not among the `known` ones, with the nearest of them."""
    names = list(known)
    near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.4)
    hint = f"did you mean {'.'.join([*path[:-1], near[0]])}?" if near else f"known keys: {', '.join(names)}"
    return f"unknown key {'.'.join(path)}; {hint}"


def unknown_key(path: Sequence[str], known: Iterable[str]) -> ValidationError:
    """Return the error for an unknown key, to be raised by a validator of the model that lacks it."""
    fault = PydanticCustomError(UNKNOWN, "{text}", {"text": describe_unknown(path, known)})
    return ValidationError.from_exception_data(path[-1], [InitErrorDetails(type=fault, loc=(path[-1],), input=None)])


def prefix(error: ValidationError, section: str) -> ValidationError:
    """Return the same error with its keys below those of a section."""
    faults = [
        InitErrorDetails(
            type=PydanticCustomError(fault["type"], "{text}", {"text": fault["msg"]}),
            loc=(section, *fault["loc"]),
            input=fault["input"],
        )
        for fault in error.errors()
    ]
    return ValidationError.from_exception_data(error.title, faults)


@cache
def settings_loader() -> Any:
    """Return a yaml.SafeLoader that reads numbers, true, false and null as YAML 1.2 does, and all else as text.

    In YAML 1.1, 16:9 is 969 and no is false. PyYAML is imported here: records need no settings of a file.
    """
    import yaml

    class SettingsLoader(yaml.SafeLoader):
        pass

    SettingsLoader.yaml_implicit_resolvers = {}
    SettingsLoader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
    for kind, pattern in SCALARS.items():
        SettingsLoader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", pattern, None)
    return SettingsLoader


def read_yaml(text: str) -> Any:
    """Return the plain data of a document of settings. Raises yaml.YAMLError."""
    import yaml

    return yaml.load(text, settings_loader())  # noqa: S506 - it is a SafeLoader


def read_mapping(path: Path, flag: str, expected: str) -> dict[str, object]:
    """Return a YAML file that holds one mapping; empty for an empty file.

    Raises ConfigError that names flag and file.
    """
    documents = read_documents(path, flag, settings_loader())
    settings = (documents[0] if documents else None) or {}
    if len(documents) > 1 or not isinstance(settings, dict):
        content = documents if len(documents) > 1 else settings
        raise ConfigError(f"{flag} {path}: expected {expected}, found {content!r:.60}")
    return settings


def read_documents(path: Path, flag: str, loader: Any = None) -> list[Any]:
    """Return the documents of a YAML file, read as PyYAML's SafeLoader does.

    Raises ConfigError that names flag and file.
    """
    import yaml

    try:
        return list(yaml.load_all(path.expanduser().read_text(), loader or yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path}: is not valid YAML ({error})") from error


def read_value(text: str) -> Any:
    """Return a value of the command line: a number, true, false, null, YAML in brackets or quotes; else the text."""
    if not (text.startswith(("[", "{", '"', "'")) or any(pattern.match(text) for pattern in SCALARS.values())):
        return text
    import yaml

    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text


def override(settings: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    """Return plain settings with some changed by dotted key."""
    changed = dict(settings)
    for key, value in overrides.items():
        first, _, rest = key.partition(".")
        section = changed.get(first)
        changed[first] = override(section if isinstance(section, Mapping) else {}, {rest: value}) if rest else value
    return changed


def merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Merge `changes` over `base`, section by section."""
    both = dict(base)
    for key, value in changes.items():
        inner = both.get(key)
        if isinstance(inner, dict) and value is None:  # a section without a key under it
            continue
        both[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both
