"""Lines of logs, bounded in memory: a program may print gigabytes without the end of a line.

A carriage return ends a line, since progress bars use it. A line longer than LONGEST comes in pieces of that length.
The last lines of a log are at most TAIL characters in all.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from sp500.jobs.state import one_line

LONGEST = 10_000
LONGEST_REASON = 300
TAIL = 2 * 2**20
END = re.compile(r"\r\n|\n|\r")


class LineSplitter:
    """Cuts a text that comes in pieces into lines."""

    def __init__(self, removed: re.Pattern[str] | None = None, hold: int = LONGEST) -> None:
        """Remove `removed` from each line, its end included; `hold`: its longest match."""
        self._removed, self._hold = removed, max(hold, LONGEST)
        self._rest = ""

    def add(self, piece: str) -> list[str]:
        """Return the lines that ended in this piece."""
        text, start, lines = self._rest + piece, 0, list[str]()
        if self._removed:
            text = self._removed.sub("", text)
        for end in END.finditer(text):
            if end.end() == len(text) and end[0] == "\r":  # its line feed may come with the next piece
                break
            line, start = text[start : end.start()], end.end()
            lines += [line] if len(line) <= LONGEST else _pieces(line)
        self._rest = text[start:]
        while len(self._rest) > self._hold:
            lines.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        return lines

    def rest(self) -> list[str]:
        """Return the last line, which lacks its end; nothing if there is none."""
        rest, self._rest = self._rest, ""
        return (_pieces(rest.removesuffix("\r")) or [""]) if rest else []


class Tail:
    """The last lines of many: at most so many, and at most TAIL characters."""

    def __init__(self, count: int) -> None:
        self._count, self._size = count, 0
        self._lines: deque[str] = deque()

    def add(self, lines: Iterable[str]) -> None:
        """Take lines, and forget the oldest."""
        for line in lines:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._lines and (len(self._lines) > self._count or self._size > TAIL):
                self._size -= len(self._lines.popleft()) + 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)


def behind(pieces: Iterable[str], after: int) -> Iterator[str]:
    """Yield a text in pieces without its first `after` characters."""
    for piece in pieces:
        if new := piece[after:]:
            yield new
        after = max(0, after - len(piece))


def last_message(text: str) -> str:
    """Return the last line with a message, such as the end of a traceback. Indented lines are details of one above.

    The first detail belongs to a message that ends in a colon: torch puts a cause there.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    at = next((at for at in reversed(range(len(lines))) if not lines[at][0].isspace()), len(lines) - 1)
    message, *details = lines[at:] or [""]
    return f"{message} {details[0].strip()}" if details and message.endswith(":") else message


def shorten(text: str) -> str:
    """Return a text on one line; of a long one both ends: the kind of error is in front and its cause at the back."""
    line, half = one_line(text), LONGEST_REASON // 2
    return line if len(line) <= LONGEST_REASON else f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"


def _pieces(line: str) -> list[str]:
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)]
