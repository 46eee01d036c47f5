"""Files whose last key is a checksum of the others, since a report or a server trusts each number in them."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

SEALED = re.compile(rb'(\{.*),\n "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)


def seal(model: BaseModel) -> str:
    """The text of a model's file. What is not UTF-8 in a name of a file, as in a reason, is escaped."""
    try:
        whole = model.model_dump_json(indent=1)
    except PydanticSerializationError:
        whole = type(model).model_validate(_escape(model.model_dump())).model_dump_json(indent=1)
    text = whole.removesuffix("\n}")
    return f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def unseal(data: bytes) -> bytes:
    """The fields of a file as JSON. Raises ValueError for one that is not as it was written."""
    match = SEALED.fullmatch(data)
    if match is None:
        raise ValueError("it does not end with a checksum")
    if hashlib.sha256(match[1]).hexdigest() != match[2].decode():
        raise ValueError("it does not match its checksum")
    return match[1] + b"\n}"


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape(key): _escape(item) for key, item in value.items()}
    return [_escape(item) for item in value] if isinstance(value, list | tuple) else value
