"""Logs of ended jobs, kept here because their pods and clusters go."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from sp500.disk import write_atomic
from sp500.jobs.executor import Line
from sp500.jobs.state import Role

FILE = "log.jsonl"
# Lines kept of each process; a training run prints a few hundred.
LINES = 20_000


def keep(folder: Path, lines: Iterable[Line]) -> None:
    """Write the lines to `folder`, in place of what was kept there; an empty log replaces nothing."""
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    if text:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(folder / FILE, text)


def kept(folder: Path) -> bool:
    """Whether a log lies there."""
    return (folder / FILE).exists()


def note(folder: Path, text: str) -> None:
    """Leave a line in place of a log, unless one was kept before."""
    if not kept(folder):
        keep(folder, [Line(Role.SUBMITTER, "", text)])


def read(folder: Path, *, role: Role | None = None, tail: int | None = None) -> Iterator[Line] | None:
    """The kept lines of one role or of all, the last `tail` of each process; None where none were kept."""
    try:
        rows = (folder / FILE).read_text().splitlines()
    except FileNotFoundError:
        return None
    lines = [Line(Role(row["role"]), row["source"], row["text"]) for row in map(json.loads, rows)]
    chosen = [line for line in lines if role in {None, line.role}]
    return iter(chosen) if tail is None else _last(chosen, tail)


def _last(lines: list[Line], tail: int) -> Iterator[Line]:
    count: defaultdict[tuple[Role, str], int] = defaultdict(int)
    found: deque[Line] = deque()
    for line in reversed(lines):
        process = line.role, line.source
        if count[process] < tail:
            found.appendleft(line)
        count[process] += 1
    return iter(found)
