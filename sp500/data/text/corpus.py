"""Documents of a source, in a fixed order, as bytes."""

from __future__ import annotations

import gzip
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from sp500.data.sources.plain_text import find_other_kind
from sp500.data.text.settings import TextConfig
from sp500.errors import ConfigError, DataError

# The text of one Python for all: each version has another one.
TOPICS = Path(__file__).parent / "bundled" / "python-3.11-topics.json.gz"
LEFT_OUT = {"test", "tests", "idlelib", "encodings", "lib2to3", "site-packages", "__pycache__"}
"""Folders of the standard library that hold no code worth learning."""
LINES = {".jsonl", ".ndjson"}
"""Files with a JSON object in each line."""
SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".csv", ".html"}
"""Files of a folder that are read."""
BETWEEN = b"\n\n"
"""The separator of two documents."""


def read(text: TextConfig) -> list[bytes]:
    """Read the documents of a source, up to `text.max_bytes`; Python's own texts are one document each.

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
    """Yield topics of the documentation of Python 3.11, or modules of the library of this Python, by name."""
    if source == "docs":
        topics: dict[str, str] = json.loads(gzip.decompress(TOPICS.read_bytes()))
        return (topics[name].encode() for name in sorted(topics))
    return _files(Path(sysconfig.get_path("stdlib")), {".py"}, LEFT_OUT)


def refuse_unused_field(text: TextConfig) -> None:
    """Raise ConfigError if text.field is given and no line is parsed for it."""
    parsed = {Path(source).suffix.lower() for source in (text.source, text.valid_source)} & LINES
    if text.field != TextConfig().field and (text.prompt or not parsed):
        used = (
            "text.prompt and text.answer are read in its place" if text.prompt else f"{text.source} has no such lines"
        )
        raise ConfigError(
            f"text.field {text.field!r} is a key in the lines of a .jsonl or .ndjson file; {used}: leave it out"
        )


def _documents(text: TextConfig) -> Iterator[bytes]:
    path = Path(text.source).expanduser()
    if path.is_dir():
        return _files(path, SUFFIXES, set())
    if path.suffix.lower() in LINES:
        return _lines(path, text, "field")
    if path.suffix.lower() == ".json":
        raise DataError(f"text.source {path}: is JSON as a whole; expected an object per line, or a .txt file")
    return iter([_read(path)])


def _files(folder: Path, suffixes: set[str], left_out: set[str]) -> Iterator[bytes]:
    """Yield the contents of files with these suffixes in the order of their paths, each once for several links."""
    files: dict[str, Path] = {}
    for path in sorted(_walk(folder, left_out)):
        if path.suffix.lower() in suffixes and (path.is_file() or not path.exists()):  # a dead link raises
            files.setdefault(os.path.realpath(path), path)
    return map(_read, files.values())


def _walk(folder: Path, left_out: set[str]) -> Iterator[Path]:
    """Yield files under a folder and under those that it links to, without hidden ones, where tools leave copies."""
    root = os.path.realpath(folder)
    entered = {root}
    for place, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        kept = []
        for name in sorted(folders):
            real = os.path.realpath(Path(place, name))
            loop = real in entered or Path(root).is_relative_to(real)
            if not (loop or name.startswith(".") or name in left_out):
                entered.add(real)
                kept.append(name)
        folders[:] = kept
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _refuse(error: OSError) -> None:
    raise DataError(f"text.source {error.filename}: cannot be read ({error.strerror})") from error


def read_pairs(text: TextConfig, path: str) -> list[tuple[bytes, bytes]]:
    """Read prompt and answer of each line of a .jsonl file, up to `text.max_bytes`. Raises DataError with the line."""
    prompts, answers = (_lines(Path(path).expanduser(), text, field) for field in ("prompt", "answer"))
    pairs, bytes_left = [], text.max_bytes or float("inf")
    for prompt, answer in zip(prompts, answers, strict=True):
        if bytes_left <= 0:
            break
        pairs.append((prompt, answer))
        bytes_left -= len(prompt) + len(answer)
    return pairs


def _lines(path: Path, text: TextConfig, setting: str) -> Iterator[bytes]:
    """Yield the value of each line under the key that `text.<setting>` names."""
    field = getattr(text, setting)
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _parse(line, field)
        except (ValueError, RecursionError) as error:
            expected = f"expected an object whose {field!r} (text.{setting}) is text"
            raise DataError(f"{path}, line {number}: {_explain(error)}; {expected}") from error


def _parse(line: bytes, field: str) -> bytes:
    """Return the text under a key. Raises ValueError that describes the problem of the line."""
    value = json.loads(line)
    if isinstance(value, dict) and isinstance(value.get(field), str):
        return str(value[field]).encode()
    present = isinstance(value, dict) and field in value
    raise ValueError(f"its {field!r} is no text" if present else "is no object with that key")


def _explain(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line, in a user's words."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"has half of a surrogate pair, {error.object[error.start]!a}"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg})"
    return "is nested too deep" if isinstance(error, RecursionError) else str(error)


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = f"{error.strerror}; expected docs, stdlib, a file or a folder"
        raise DataError(f"text.source {path}: cannot be read ({reason})") from error
    if kind := find_other_kind(data):
        raise DataError(f"text.source {path}: is {kind}; expected plain text: unpack it, or save it as UTF-8")
    return data


def _first(documents: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield documents up to `most` bytes with the separators between them; all for 0. Later ones are not read."""
    bytes_left = most or float("inf")
    for document in documents:
        if not document:
            continue
        yield document[: int(bytes_left)] if bytes_left < len(document) else document
        bytes_left -= len(document) + len(BETWEEN)
        if bytes_left <= 0:
            return
