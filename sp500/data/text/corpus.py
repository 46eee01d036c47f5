"""Documents of a source, in a fixed order, as bytes."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sp500.config import TextConfig
from sp500.errors import DataError

LEFT_OUT = {"test", "tests", "idlelib", "encodings", "lib2to3", "site-packages", "__pycache__"}
"""Folders of the standard library that hold no code worth learning."""
SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html"}
BETWEEN = b"\n\n"
"""What stands between two documents."""


def read(text: TextConfig) -> list[bytes]:
    """The documents of a source, cut after `text.max_bytes`; Python's own texts are one document each.

    Raises DataError that names the file and the line.
    """
    documents = [document for document in _documents(text) if document]
    if text.max_bytes:
        documents = list(_first(documents, text.max_bytes))
    if not documents:
        raise DataError(f"text.source {text.source}: has no text")
    return documents


def _documents(text: TextConfig) -> Iterator[bytes]:
    if text.source == "docs":
        from pydoc_data import topics

        return iter([BETWEEN.join(topics.topics[name].encode() for name in sorted(topics.topics))])
    if text.source == "stdlib":
        return iter([BETWEEN.join(_files(Path(sysconfig.get_path("stdlib")), {".py"}))])
    path = Path(text.source).expanduser()
    if path.is_dir():
        return _files(path, SUFFIXES)
    if path.suffix == ".jsonl":
        return _lines(path, text.field)
    return iter([_read(path)])


def _files(folder: Path, suffixes: set[str]) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and path.is_file() and LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
            yield _read(path)


def _lines(path: Path, field: str) -> Iterator[bytes]:
    for number, line in enumerate(_read(path).splitlines(), 1):
        try:
            found = json.loads(line)[field]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: expected an object with {field!r} (text.field)") from error
        if not isinstance(found, str):
            raise DataError(f"{path}, line {number}: {field!r} is {type(found).__name__}, expected text")
        yield found.encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = f"{error.strerror}; expected docs, stdlib, a file or a folder"
        raise DataError(f"text.source {path}: cannot be read ({reason})") from error


def _first(documents: list[bytes], most: int) -> Iterator[bytes]:
    for document in documents:
        if most <= 0:
            return
        yield document[:most]
        most -= len(document) + len(BETWEEN)
