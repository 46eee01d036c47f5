"""Lines of a log that still grows. The last ones are found from the end: a log may be larger than memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 16
# A line longer than this comes in pieces.
LONGEST = 1 << 20
TICK = 0.2


def lines(path: Path, *, tail: int | None, more: Callable[[], bool]) -> Iterator[str]:
    """The last `tail` lines of a file, or all, and those that are added as long as `more()`; none where it is missing.

    A last line without its end comes at the end. What is no UTF-8 is replaced.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(0 if tail is None else tail_start(file, tail))
        begun = b""
        while True:
            growing = more()  # asked before reading: what came before the end is read
            while piece := file.readline(LONGEST):
                begun += piece
                if begun.endswith(b"\n") or len(begun) >= LONGEST:
                    yield _text(begun)
                    begun = b""
            if not growing:
                break
            time.sleep(TICK)
        if begun:
            yield _text(begun)


def tail_start(file: BinaryIO, count: int) -> int:
    """Offset in bytes at which the last `count` lines begin; a line may lack its end."""
    at = end = file.seek(0, os.SEEK_END)
    if count == 0:
        return end
    missing = count
    while at > 0:
        size = min(BLOCK, at)
        at = file.seek(at - size)
        block = file.read(size)
        stop = size - 1 if at + size == end else size  # the end of the last line begins no other
        while (found := block.rfind(b"\n", 0, stop)) >= 0:
            missing -= 1
            if missing == 0:
                return at + found + 1
            stop = found
    return 0


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
