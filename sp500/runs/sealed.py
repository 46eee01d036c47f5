"""Files whose last key is a checksum of the others, since a report or a server trusts each number in them."""

from __future__ import annotations

import hashlib
import re

from pydantic import BaseModel

SEALED = re.compile(rb'(\{.*),\n "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)


def seal(model: BaseModel) -> str:
    """The text of a model's file."""
    text = model.model_dump_json(indent=1).removesuffix("\n}")
    return f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def unseal(data: bytes) -> bytes:
    """The fields of a file as JSON. Raises ValueError for one that is not as it was written."""
    match = SEALED.fullmatch(data)
    if match is None:
        raise ValueError("it does not end with a checksum")
    if hashlib.sha256(match[1]).hexdigest() != match[2].decode():
        raise ValueError("it does not match its checksum")
    return match[1] + b"\n}"
