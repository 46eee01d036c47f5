"""Logs of ended jobs, kept here because their pods and clusters go."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from heapq import merge
from operator import itemgetter
from pathlib import Path

from sp500.jobs.executor import Line
from sp500.jobs.log_lines import LONGEST
from sp500.jobs.queue.job import Job
from sp500.jobs.state import Role
from sp500.machine.disk import write_atomic

FILE = "log.jsonl"
# Lines and characters kept of each process; a training run prints a few hundred lines.
LINES, CHARACTERS = 20_000, 2 * 2**20


def folder(logs: Path, job: Job) -> Path:
    """Return the folder for the log of a job's present start, under the folder of all logs."""
    return logs / job.id / str(job.starts)


def keep(folder: Path, lines: Iterable[Line]) -> None:
    """Write the last lines of each process to `folder`, in place of what was kept; an empty log replaces nothing."""
    last_lines: defaultdict[tuple[Role, str], deque[tuple[int, Line]]] = defaultdict(deque)
    sizes: Counter[tuple[Role, str]] = Counter()
    for number, line in enumerate(lines):
        process = line.role, line.source
        last_lines[process].append((number, replace(line, text=line.text[:LONGEST])))
        sizes[process] += len(last_lines[process][-1][1].text) + 1
        while len(last_lines[process]) > LINES or sizes[process] > CHARACTERS:
            sizes[process] -= len(last_lines[process].popleft()[1].text) + 1
    text = "".join(json.dumps(asdict(line)) + "\n" for _, line in merge(*last_lines.values(), key=itemgetter(0)))
    if text:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(folder / FILE, text)


def has_log(folder: Path) -> bool:
    """Return whether a log is kept there."""
    return (folder / FILE).exists()


def note(folder: Path, text: str) -> None:
    """Leave a line in place of a log, unless one was kept before."""
    if not has_log(folder):
        keep(folder, [Line(Role.SUBMITTER, "", text)])


def read(folder: Path, *, role: Role | None = None, tail: int | None = None) -> Iterator[Line] | None:
    """Return the kept lines of one role or of all, the last `tail` of each process; None if none were kept."""
    try:
        rows = (folder / FILE).read_text().splitlines()
    except FileNotFoundError:
        return None
    lines = [Line(Role(row["role"]), row["source"], row["text"]) for row in map(json.loads, rows)]
    selected = [line for line in lines if role in {None, line.role}]
    return iter(selected) if tail is None else _last(selected, tail)


def _last(lines: list[Line], tail: int) -> Iterator[Line]:
    count: defaultdict[tuple[Role, str], int] = defaultdict(int)
    last_lines: deque[Line] = deque()
    for line in reversed(lines):
        process = line.role, line.source
        if count[process] < tail:
            last_lines.appendleft(line)
        count[process] += 1
    return iter(last_lines)
