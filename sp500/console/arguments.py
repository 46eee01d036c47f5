"""Command-line arguments of a settings model: read by tyro, and faults told by the names of the flags."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from sp500.errors import ConfigError
from sp500.schema import explain

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
    """The settings that the flags give, over `default`; `rules` are tyro's, for types that it does not know.

    Ends with exit code 2 on an unknown flag or a text that is of no such type. Raises ConfigError, with the flag's
    name, for a value that the model refuses.
    """
    registry = ConstructorRegistry()
    for rule in rules:
        registry.primitive_rule(rule)
    registry.struct_rule(functools.partial(_read_model, model))
    base = tyro.MISSING_NONPROP if default is None else default
    return tyro.cli(model, prog=prog, description=description, default=base, args=list(argv), registry=registry)


def _read_model(root: type[BaseModel], of: StructTypeInfo) -> StructConstructorSpec | None:
    """How tyro makes a settings model, the root or a section of it, from flags."""
    model = of.type
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    sections = {field.annotation: f"{name}." for name, field in root.model_fields.items()}

    def build(**values: object) -> BaseModel:
        try:
            return model(**values)
        except ValidationError as error:
            lines = [_explain(model, sections.get(model, ""), fault) for fault in error.errors()]
            raise ConfigError("\n".join(lines)) from None

    build.__doc__ = model.__doc__
    fields = [_read_field(name, field, of.default) for name, field in model.model_fields.items()]
    return StructConstructorSpec(build, tuple(fields))


def _explain(model: type[BaseModel], section: str, fault: Any) -> str:
    """A fault of pydantic, by the name of the flag."""
    text = explain(model, fault)
    field = model.model_fields.get(str(fault["loc"][0])) if fault["loc"] else None
    if field is None or {tyro.conf.Suppress, tyro.conf.Positional} & set(field.metadata):
        return text  # of several fields together, which it names itself, or of a field without a flag
    path, colon, rest = text.partition(": ")
    name, *below = path.split(".")
    renamed = next((mark.name for mark in field.metadata if isinstance(mark, RENAMED) and mark.name), name)
    return f"--{section}{'.'.join([renamed, *below]).replace('_', '-')}{colon}{rest}"


def _read_field(name: str, field: FieldInfo, base: object) -> StructFieldSpec:
    """A flag: its help in one paragraph, without a default that says nothing and without None among its values."""
    default = getattr(base, name) if isinstance(base, BaseModel) else _default(field)
    marks: list[object] = [*field.metadata]
    if any(default is nothing for nothing in (None, False, tyro.MISSING)) or default in ("", (), {}):
        marks.append(tyro.conf.arg(help_behavior_hint=""))
    if default is False:
        marks.append(tyro.conf.FlagCreatePairsOff)
    if metavar := _metavar(name, field):
        marks.append(tyro.conf.arg(metavar=metavar))
    kind: Any = Annotated[(field.annotation, *marks)] if marks else field.annotation
    return StructFieldSpec(name, kind, default, " ".join((field.description or "").split()) or None)


def _default(field: FieldInfo) -> object:
    return tyro.MISSING if field.is_required() else field.get_default(call_default_factory=True)


def _metavar(name: str, field: FieldInfo) -> str | None:
    """What stands for the value, where tyro's own choice is not the best."""
    if tyro.conf.Positional in field.metadata:
        if get_origin(field.annotation) is tuple:
            return f"[{name.upper().removesuffix('S')} ...]"
        return name.upper() if field.is_required() else f"[{name.upper()}]"
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    if get_origin(field.annotation) not in {Union, UnionType} or len(kinds) != 1:
        return None
    kind = get_args(kinds[0])[0] if get_origin(kinds[0]) is Annotated else kinds[0]
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    if get_origin(kind) is tuple:
        return f"[{(name := NAMES[get_args(kind)[0]])} [{name} ...]]"
    return NAMES.get(kind)
