"""The base of all settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator


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
