"""Command-line arguments of a settings model, read by tyro; errors name the flags."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from sp500.config import OwnModel, RunConfig, kinds
from sp500.config.frozen import Alias, Frozen, Keyed
from sp500.errors import ConfigError
from sp500.schema import Metavar, explain

M = TypeVar("M", bound=BaseModel)

RENAMED: Any = type(tyro.conf.arg())
"""Mark of a field whose flag has another name."""
NAMES = {Path: "PATH", str: "STR", int: "INT", float: "FLOAT", date: "YYYY-MM-DD"}


def parse(
    model: type[M],
    argv: Sequence[str],
    prog: str | None = None,
    *,
    default: M | None = None,
    description: str | None = None,
    rules: Sequence[Callable[..., Any]] = (),
) -> M:
    """Return the settings that the flags give, over `default`; `rules` are tyro's, for types that it does not know.

    Ends with exit code 2 on an unknown flag or a text that is of no such type. Raises ConfigError, with the flag's
    name, for a value that the model refuses.
    """
    registry = ConstructorRegistry()
    for rule in rules:
        registry.primitive_rule(rule)
    registry.struct_rule(functools.partial(_read_model, model, _list_sections(model, default)))
    base = tyro.MISSING_NONPROP if default is None else default
    return tyro.cli(model, prog=prog, description=description, default=base, args=list(argv), registry=registry)


def _read_model(
    root: type[BaseModel], sections: Mapping[str, type], of: StructTypeInfo
) -> StructConstructorSpec | None:
    """Return how tyro makes a settings model, the root or a section of it, from flags."""
    model = of.type
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    section = next((f"{name}." for name, of_section in sections.items() if of_section is model), "")

    def build(**values: object) -> BaseModel:
        try:
            return model(**values)
        except ValidationError as error:
            lines = [_explain(root, section, path, text) for path, text in explain(model, error)]
            raise ConfigError("\n".join(dict.fromkeys(lines))) from None

    build.__doc__ = model.__doc__
    fields = [_read_field(name, field, of.default) for name, field in model.model_fields.items()]
    extra = getattr(of.default, "__pydantic_extra__", None) or {}
    fields += [StructFieldSpec(name, type(section), section, None) for name, section in extra.items()]
    return StructConstructorSpec(build, tuple(fields))


def _list_sections(root: type[BaseModel], base: BaseModel | None) -> dict[str, type]:
    """Return the class of each section by its key; that of `base` may be more special than what the field says."""
    types = {name: field.annotation for name, field in root.model_fields.items()}
    types |= {name: type(value) for name, value in (base or ())}
    return {name: kind for name, kind in types.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _explain(root: type[BaseModel], section: str, path: tuple[str, ...], text: str) -> str:
    """Return an error of the root or a section of it, by the names of the flags; without places in lists."""
    keys = [part for part in path if not part.isdecimal()]
    return name_flags(root, ": ".join(filter(None, [section + ".".join(keys) if keys else "", text])))


def name_flags(root: type[BaseModel], text: str) -> str:
    """Replace keys in a text about settings by their flags, such as train.lr, num_workers, or any at its beginning."""
    flags = dict(_flags(root))
    keys = "|".join(re.escape(key) for key in sorted(flags, key=len, reverse=True) if "." in key or "_" in key)
    text = re.sub(rf"(?<![\w.-])(?:{keys})(?![\w-]|\.\w)", lambda found: flags[found[0]], text) if keys else text
    head, colon, rest = text.partition(": ")
    name, dot, below = head.partition(".")
    return f"{flags.get(name, name)}{dot}{below}{colon}{rest}" if colon else text


def _flags(model: type[BaseModel], section: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and flag of each setting that has a flag."""
    for name, field in (model.all_fields() if issubclass(model, Frozen) else model.model_fields).items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _flags(field.annotation, f"{section}{name}.")
        elif not {tyro.conf.Suppress, tyro.conf.Positional} & set(field.metadata):
            renamed = next((mark.name for mark in field.metadata if isinstance(mark, RENAMED) and mark.name), name)
            short = next((mark.flag for mark in field.metadata if isinstance(mark, Alias)), None)
            yield section + name, short or f"--{section}{renamed}".replace("_", "-")


def check_owners(base: RunConfig, argv: Sequence[str]) -> None:
    """Raise ConfigError for a flag that only other tasks or kinds of model have than those of these defaults."""
    own = {flag for _, flag in _flags(type(base.model), "model.")}
    own |= {f"--{name}." for name in base.sections}
    for flag in (word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")):
        section, _, key = flag.removeprefix("--").partition(".")
        owners = [task for task, kind in kinds.tasks().items() if kind.section == section]
        if section and owners and f"--{section}." not in own:
            raise ConfigError(f"{flag} is not used by --task {base.task}, only by {owners[0]}; leave it out")
        key = key.replace("-", "_")
        owners = [kind for kind, of in kinds.models().items() if key in of.model_fields]
        if section == "model" and flag not in own and owners:
            listed = ", ".join([*owners, "your own"] if key in OwnModel.model_fields else owners)
            raise ConfigError(f"{flag} is not used by --model.kind {base.model.kind}, only by {listed}; leave it out")


def _read_field(name: str, field: FieldInfo, base: object) -> StructFieldSpec:
    """Return a flag with its help in one paragraph, without an empty default and without None among its values."""
    default = getattr(base, name) if isinstance(base, BaseModel) else _default(field)
    marks: list[object] = [*field.metadata]
    if any(default is nothing for nothing in (None, False, tyro.MISSING)) or default in ("", (), {}):
        marks.append(tyro.conf.arg(help_behavior_hint=""))
    if default is False:
        marks.append(tyro.conf.FlagCreatePairsOff)
    named = [mark.text for mark in field.metadata if isinstance(mark, Metavar)]
    if metavar := named[0] if named else _metavar(name, field):
        marks.append(tyro.conf.arg(metavar=metavar))
    if aliases := [mark.flag for mark in field.metadata if isinstance(mark, Alias)]:
        marks.append(tyro.conf.arg(aliases=aliases))
    kind: Any = type(default) if isinstance(default, BaseModel) else field.annotation
    if any(isinstance(mark, Keyed) for mark in field.metadata):  # read before: tyro cannot know its keys
        kind, marks = Any, [tyro.conf.Suppress, tyro.conf.Fixed]
    kind = Annotated[(kind, *marks)] if marks else kind
    return StructFieldSpec(name, kind, default, _help(field))


def _help(field: FieldInfo) -> str | None:
    """Return the help of a field in one paragraph, with the names of the built-in tasks and models."""
    text = " ".join((field.description or "").split())
    for word, names in (("{tasks}", kinds.tasks), ("{models}", kinds.models)):
        text = text.replace(word, " | ".join(names())) if word in text else text
    return text or None


def _default(field: FieldInfo) -> object:
    return tyro.MISSING if field.is_required() else field.get_default(call_default_factory=True)


def _metavar(name: str, field: FieldInfo) -> str | None:
    """Return the placeholder for the value, or None if tyro's own choice is good."""
    if tyro.conf.Positional in field.metadata:
        if get_origin(field.annotation) is tuple:
            return f"[{name.upper().removesuffix('S')} ...]"
        return name.upper() if field.is_required() else f"[{name.upper()}]"
    kinds = [_bare(kind) for kind in get_args(field.annotation) if kind is not NoneType]
    if get_origin(field.annotation) not in {Union, UnionType} or len(kinds) != 1:
        return None
    [kind] = kinds
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    if get_origin(kind) is tuple:
        item = NAMES.get(_bare(get_args(kind)[0]))
        return item and f"[{item} [{item} ...]]"
    return NAMES.get(kind)


def _bare(kind: Any) -> Any:
    """Return a type without what `Annotated` adds to it."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
