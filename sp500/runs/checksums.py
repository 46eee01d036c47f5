"""Files that carry their own checksums, since a report or a server trusts each number in them.

A whole file ends with one. A file of JSON lines that grows by one result at a time has one in each line: a line that a
kill cut off was never finished and counts for nothing. Any other damage, down to one flipped digit, is reported with
the file and the number of the line: a wrong loss could otherwise become the best one.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from sp500.errors import ConfigError
from sp500.machine.disk import append_durably

T = TypeVar("T")
LINE = re.compile(rb'(\{.*), "sha256": "([0-9a-f]{16})"\}')
SEALED = re.compile(rb'(\{.*),\n "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)


def append_line(path: Path, text: str) -> None:
    """Append a JSON object (on one line, not empty) with its checksum; it is on the disk when this returns."""
    assert text.startswith("{")
    assert len(text) > 2
    append_durably(path, f'{text[:-1]}, "sha256": "{_digest(text.encode())}"}}')


def read_lines(path: Path) -> list[dict[str, object]]:
    """Read the objects of a file, without their checksums; none if there is no file.

    Raises ConfigError that names the file and the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    return [_parse_line(path, number, line) for number, line in enumerate(data.split(b"\n")[:-1], 1)]


def read_rows(path: Path, kind: type[T]) -> list[T]:
    """Read the lines of a file as rows of a kind; none if there is no file. Raises ConfigError with file and line."""
    rows, adapter = list[T](), TypeAdapter(kind)
    for number, line in enumerate(read_lines(path), 1):
        try:
            rows.append(adapter.validate_python(line))
        except ValidationError as error:
            raise _line_error(path, number, str(error.errors()[0]["msg"])) from None
    return rows


def _parse_line(path: Path, number: int, line: bytes) -> dict[str, object]:
    match = LINE.fullmatch(line)
    if match is None or _digest(match[1] + b"}") != match[2].decode():
        raise _line_error(path, number, "its checksum does not match" if match else "it is not a result")
    content = json.loads(match[1] + b"}")
    assert isinstance(content, dict)
    return content


def _line_error(path: Path, number: int, why: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {number} is damaged: {why}. Remove the line and run again with --resume: what it held runs again"
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def seal(model: BaseModel) -> str:
    """Return the text of a model's file. What is not UTF-8 in a name of a file, as in a reason, is escaped."""
    try:
        whole = model.model_dump_json(indent=1)
    except PydanticSerializationError:
        whole = type(model).model_validate(_escape(model.model_dump())).model_dump_json(indent=1)
    text = whole.removesuffix("\n}")
    return f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def unseal(data: bytes) -> bytes:
    """Return the fields of a file as JSON. Raises ValueError for one that differs from what was written."""
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
