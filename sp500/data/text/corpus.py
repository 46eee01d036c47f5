"""Documents of a source, in a fixed order, as bytes."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from sp500.config import TextConfig
from sp500.errors import DataError

LEFT_OUT = {"test", "tests", "idlelib", "encodings", "lib2to3", "site-packages", "__pycache__"}
"""Folders of the standard library that hold no code worth learning."""
SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html"}
"""Files of a folder that are read."""
BETWEEN = b"\n\n"
"""What stands between two documents."""


def read(text: TextConfig) -> list[bytes]:
    """The documents of a source, up to `text.max_bytes`; Python's own texts are one document each.

    Raises DataError that names the file and the line.
    """
    if text.source in ("docs", "stdlib"):
        documents = [BETWEEN.join(_first(_python(text.source), text.max_bytes))]
    else:
        documents = list(_first(_documents(text), text.max_bytes))
    if not any(documents):
        raise DataError(f"text.source {text.source}: has no text")
    return documents


def _python(source: str) -> Iterator[bytes]:
    """Topics of Python's documentation, or modules of its library, in the order of their names."""
    if source == "docs":
        from pydoc_data import topics

        return (topics.topics[name].encode() for name in sorted(topics.topics))
    return _files(Path(sysconfig.get_path("stdlib")), {".py"}, LEFT_OUT)


def _documents(text: TextConfig) -> Iterator[bytes]:
    path = Path(text.source).expanduser()
    if path.is_dir():
        return _files(path, SUFFIXES, set())
    if path.suffix == ".jsonl":
        return _lines(path, text, "field")
    return iter([_read(path)])


def _files(folder: Path, suffixes: set[str], left_out: set[str]) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and path.is_file() and left_out.isdisjoint(path.relative_to(folder).parts):
            yield _read(path)


def read_pairs(text: TextConfig, path: str) -> list[tuple[bytes, bytes]]:
    """Prompt and answer of each line of a .jsonl file, up to `text.max_bytes`. Raises DataError that names the line."""
    prompts, answers = (_lines(Path(path).expanduser(), text, field) for field in ("prompt", "answer"))
    pairs, bytes_left = [], text.max_bytes or float("inf")
    for prompt, answer in zip(prompts, answers, strict=True):
        if bytes_left <= 0:
            break
        pairs.append((prompt, answer))
        bytes_left -= len(prompt) + len(answer)
    return pairs


def _lines(path: Path, text: TextConfig, setting: str) -> Iterator[bytes]:
    """What each line has under the key that `text.<setting>` names."""
    field = getattr(text, setting)
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)[field]
            if not isinstance(value, str):
                raise TypeError(f"{field!r} is not text")
            yield value.encode()
        except (ValueError, KeyError, TypeError) as error:
            expected = f"expected an object whose {field!r} (text.{setting}) is text"
            raise DataError(f"{path}, line {number}: {expected}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = f"{error.strerror}; expected docs, stdlib, a file or a folder"
        raise DataError(f"text.source {path}: cannot be read ({reason})") from error


def _first(documents: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Documents until there are `most` bytes with what stands between them; all for 0. None after those is read."""
    bytes_left = most or float("inf")
    for document in documents:
        if not document:
            continue
        yield document[: int(bytes_left)] if bytes_left < len(document) else document
        bytes_left -= len(document) + len(BETWEEN)
        if bytes_left <= 0:
            return
