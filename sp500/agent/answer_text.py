"""Limits of the text in one answer of a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable

LINES, LINE_LENGTH, LOG_LENGTH = 200, 1_000, 20_000
"""Limits of a log in one answer: lines, characters of each, and characters in all."""
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def limit_lines(lines: Iterable[str], length: int = LOG_LENGTH) -> tuple[list[str], int]:
    """Return the last lines that fit into an answer, without control characters, and the number of lines before."""
    every = [_printable(line) for line in lines]
    last_lines: list[str] = []
    for line in reversed(every[-LINES:]):
        length -= len(line) + 1
        if length < 0:
            break
        last_lines.append(line)
    return last_lines[::-1], len(every) - len(last_lines)


def _printable(line: str) -> str:
    text = "".join(sign for sign in ANSI.sub("", line) if sign.isprintable() or sign == "\t")
    return shorten(text, LINE_LENGTH)


def shorten(text: str, length: int) -> str:
    """Return a text cut to so many characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."
