"""Lines of a log that still grows, and the limit of its size.

A log is appended to by processes that know nothing of a limit. What is too old is freed where it lies, by a hole at the
file's front: offsets stay, so neither the writers nor those who follow the log see a change.
"""

from __future__ import annotations

import codecs
import ctypes
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sp500.errors import ConfigError, Unreachable
from sp500.jobs.executor import Line
from sp500.jobs.log_lines import TAIL, LineSplitter, Tail
from sp500.jobs.state import Role, Status

BLOCK = 1 << 16
TICK = 0.2
# Bytes of a log on the disk; when it has more, the older half is freed.
LIMIT = 64 * 2**20
KEEP_SIZE, PUNCH_HOLE = 1, 2


def of_command(
    path: Path, *, role: Role | None, tail: int | None, status: Callable[[], Status] | None, seconds: float = TICK
) -> Iterator[Line]:
    """Return the lines of the log of a job that has one process, as `Executor.logs` does.

    `status`: follow the log until the job has ended, looking every `seconds`. Raises ConfigError for another role.
    """
    if role not in {None, Role.SUBMITTER}:
        raise ConfigError(
            f"role {role}: this job is one tree of processes, whose log is that of {Role.SUBMITTER}; leave the role out"
        )
    return (Line(Role.SUBMITTER, "", text) for text in lines(path, tail=tail, more=_poll(status, seconds)))


def _poll(status: Callable[[], Status] | None, seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether a log may grow. It queries the status at most once per interval."""
    growing, due = status is not None, -math.inf

    def more() -> bool:
        nonlocal growing, due
        if status is not None and growing and time.monotonic() >= due:
            with suppress(Unreachable):  # asked again
                growing = not status().state.finished
            due = time.monotonic() + seconds
        return growing

    return more


def lines(path: Path, *, tail: int | None, more: Callable[[], bool]) -> Iterator[str]:
    """Yield the last `tail` lines of a file, or all, and new ones as long as `more()`; none if it is missing.

    A last line without its end comes at the end. What is not UTF-8 is replaced.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        splitter, decoder = LineSplitter(), codecs.getincrementaldecoder("utf-8")("replace")
        growing = more()  # asked before reading: what came before the end is read
        if tail is not None:
            yield from _last(file, tail, splitter, decoder, growing=growing)
        elif freed := _begin(file):
            yield f"(the first {freed >> 20} MiB of this log were removed: a log keeps at most {LIMIT >> 20} MiB)"
            _skip_line(file)
        while True:
            while block := file.read(BLOCK):
                yield from splitter.add(decoder.decode(block))
            if not growing:
                break
            if path.exists() and path.stat().st_size < file.tell():
                file.seek(0)  # freed by truncation, if there are no holes
            time.sleep(TICK)
            growing = more()
        yield from splitter.add(decoder.decode(b"", final=True))
        yield from splitter.rest()


def trim(path: Path) -> None:
    """Free the older part of a log that has passed its limit."""
    with suppress(OSError):
        if path.stat().st_blocks * 512 <= LIMIT:
            return
        with path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            libc = ctypes.CDLL(None, use_errno=True)
            arguments = PUNCH_HOLE | KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(max(end - LIMIT // 2, 0))
            if not hasattr(libc, "fallocate") or libc.fallocate(file.fileno(), *arguments):
                file.truncate(0)  # a file system without holes


def _begin(file: BinaryIO) -> int:
    """Go to the first byte that lies on the disk, and return its offset."""
    with suppress(OSError, AttributeError):  # a file without data, a system without holes
        return file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
    return file.seek(0)


def _skip_line(file: BinaryIO) -> None:
    """Go behind the next end of a line, if one is near."""
    start, block = file.tell(), file.read(BLOCK)
    ends = [at for at in (block.find(b"\n"), block.find(b"\r")) if at >= 0]
    file.seek(start + min(ends) + 1 if ends else start)


def _last(
    file: BinaryIO, count: int, splitter: LineSplitter, decoder: codecs.IncrementalDecoder, *, growing: bool
) -> Iterator[str]:
    """Yield the last complete lines of a file. If it no longer grows, an incomplete last line counts as well."""
    end = file.seek(0, os.SEEK_END)
    if count == 0:
        return
    begin = max(_begin(file), end - TAIL)
    file.seek(begin)
    if begin:
        file.seek(begin - 1)
        _skip_line(file)
    tail = Tail(count)
    while (left := end - file.tell()) > 0 and (block := file.read(min(BLOCK, left))):
        tail.add(splitter.add(decoder.decode(block)))
    if not growing:
        while block := file.read(BLOCK):
            tail.add(splitter.add(decoder.decode(block)))
        tail.add(splitter.rest())
    yield from tail
