"""The base of all settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Alias:
    """A second, shorter flag of a setting; in the `Annotated` of a field's type."""

    flag: str


@dataclass(frozen=True)
class Keyed:
    """Mark of a setting that is a dictionary whose keys are a part of the flag: --SECTION.NAME.KEY VALUE."""


@dataclass(frozen=True)
class AgentFiles:
    """Files that an agent may name in a setting: where they lie in the project, and how they end.

    An error of the experiment quotes what it could not read, so a file with secrets must not be read at all.
    """

    endings: frozenset[str]
    words: frozenset[str] = frozenset()
    """Values that are no files."""
    folder: str = ""


Agents = bool | Literal["short"] | AgentFiles
"""Whether agents may give a setting: in no way, by its flag, by its short flag only, or with such files only."""


def setting(default: Any, *, agents: Agents = False, **rules: Any) -> Any:
    """Return a field with a default and pydantic's rules, which agents may give if it says so."""
    return Field(default, json_schema_extra={"agents": agents} if agents else None, **rules)  # type: ignore[dict-item]


def read_mark(field: FieldInfo) -> Agents:
    """Return whether agents may give a setting."""
    extra = field.json_schema_extra
    mark: Any = extra.get("agents", False) if isinstance(extra, dict) else False
    return cast("Agents", mark)


class Frozen(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: object) -> object:
        """Refuse a path that is not UTF-8: no record and no settings file can hold it."""
        text = str(value) if isinstance(value, str | Path) else ""
        if text.encode(errors="replace").decode() != text:
            raise ValueError(f"{text!r} is not valid UTF-8. Rename it, or use a locale with UTF-8")
        return value

    @classmethod
    def all_fields(cls) -> Mapping[str, FieldInfo]:
        """Return every setting that an object of this class, or of a class of one of its kinds, can have."""
        return cls.model_fields
