"""The output of a program as it comes: its lines, the metric in them, and a log of bounded size.

A line is read up to LONGEST bytes, however long it is. The log keeps the last half to whole of its limit.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp500.machine.disk import explain_errors

LONGEST = 1 << 16
LOG_BYTES = 16 * 2**20
END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Measurement:
    """A line with the metric."""

    value: float
    epoch: int
    """As the line says, else the number of lines with the metric so far."""
    samples: int | None = None
    """Samples trained on so far, if the line says so."""


class Lines:
    """Cuts output that comes in blocks into lines. A carriage return ends a line, since progress bars use it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, block: bytes) -> list[str]:
        """Return the lines that ended in this block."""
        first, *others = END.split(block)
        self._rest += first[: LONGEST - len(self._rest)]  # the beginning of a line that is too long
        if not others:
            return []
        lines, self._rest = [self._rest, *others[:-1]], bytearray(others[-1][:LONGEST])
        return [_decode(line) for line in lines]

    def end(self) -> list[str]:
        """Return the last line, which lacks its end."""
        rest, self._rest = self._rest, bytearray()
        return [_decode(rest)] if rest else []


class MetricReader:
    """Finds the metric in lines: JSON objects with its key or, with a pattern, what the pattern's groups match."""

    def __init__(self, metric: str, pattern: str = "") -> None:
        self._metric = metric
        self._pattern = re.compile(pattern) if pattern else None
        self._group = find_group(self._pattern, metric) if self._pattern else 0
        self._lines = 0

    def read(self, line: str) -> Measurement | None:
        """Return what a line says of the metric; None if nothing."""
        fields = self._match(line) if self._pattern else _parse(line)
        value = _number(fields.get(self._metric))
        if value is None:
            return None
        self._lines += 1
        epoch = _count(fields.get("epoch"))
        return Measurement(value, self._lines if epoch is None else epoch, _count(fields.get("samples")))

    def _match(self, line: str) -> dict[str, Any]:
        """Return the named groups and the metric."""
        assert self._pattern
        match = self._pattern.search(line)
        return {**match.groupdict(), self._metric: match[self._group]} if match else {}


def find_group(pattern: re.Pattern[str], metric: str) -> int:
    """Return the number of the group with the metric: that of its name, else the first without a name; 0 if none."""
    named = pattern.groupindex
    unnamed = set(range(1, pattern.groups + 1)) - set(named.values())
    return named.get(metric) or min(unnamed, default=0)


class Log:
    """A file that a program's output goes to. The older half moves to a second file, which the next half replaces.

    Raises DiskError.
    """

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path, self._half = path, limit // 2
        with explain_errors(path):
            self._file = path.open("ab", buffering=0)

    def write(self, block: bytes) -> None:
        """Append a block."""
        with explain_errors(self._path):
            if self._file.tell() >= self._half:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._file = self._path.open("ab", buffering=0)
            while block:  # a disk that is nearly full takes a part
                block = block[self._file.write(block) :]


def _parse(line: str) -> dict[str, Any]:
    text = line.strip()
    if not text.startswith("{"):
        return {}
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _count(value: object) -> int | None:
    """Return a whole number, rounded down; None for what is none, such as infinity."""
    number = _number(value)
    return None if number is None or not math.isfinite(number) else int(number)


def _decode(line: bytes | bytearray) -> str:
    return line[:LONGEST].decode(errors="replace")
